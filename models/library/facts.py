"""Facts about model files for lists; cached, because a large vocabulary takes long to read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from math import prod
from pathlib import Path
from typing import Any, Final, get_args

from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.files import locked, make_folder, replace_file
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import Role, check_vocabulary, role_of, vocabulary_digest
from slipstream.models.library.names import label_of
from slipstream.models.library.records import size_of
from slipstream.models.outside import read_object

_VERSION: Final = 2
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one model file; if it is broken, ``problem`` says why."""

    parts: tuple[str, ...]  # all its files in order
    size: int  # bytes of all files
    architecture: str = ""  # ``general.architecture``
    title: str = ""  # the name in its header
    params: int = 0
    context: int = 0  # context that it was trained with, in tokens
    quant: str = ""  # the label of its quantization in its header
    fingerprint: str = ""  # as ``Header.fingerprint``
    role: Role = "chat"
    n_vocab: int = 0  # number of tokens in its vocabulary
    vocabulary: str = ""  # as ``vocabulary_digest``
    problem: str = ""  # what is wrong with it; empty if nothing is wrong
    hint: str = ""  # what to do about the problem


_BLANK: Final = Facts((), 0)


class FactsCache:
    """Caches facts by path; they are valid while size, time and inode of the file stay the same."""

    def __init__(self, file: Path) -> None:
        """Reads the cache; it is empty if the file is missing, damaged or of another version."""
        self._file = file
        self._used: dict[str, Any] = {}
        self._kept = self._read()

    def of(self, path: Path) -> Facts:
        """The facts about a model file; facts about a broken file are not cached."""
        key = str(path)
        with suppress(OSError, TypeError, KeyError, ValueError, AttributeError):
            entry = self._kept[key]
            facts = Facts(**{**entry["facts"], "parts": tuple(map(str, entry["facts"]["parts"]))})
            if entry["stamp"] == _stamp(facts.parts) and _sound(facts):
                self._used[key] = entry
                return facts
        facts = read_facts(path)
        if not facts.problem:
            with suppress(OSError):
                self._used[key] = {"stamp": _stamp(facts.parts), "facts": asdict(facts)}
        return facts

    def keep(self) -> None:
        """Writes the facts that were used or added since the cache was read, and drops the others.

        Write errors are ignored: the facts are read from the models again.
        """
        if self._used == self._kept:
            return
        with suppress(OSError, SlipstreamError):
            make_folder(self._file.parent)
            with locked(self._file.with_name(".facts.lock"), 0.0):
                added = {key: entry for key, entry in self._read().items() if key not in self._kept}
                kept = {"version": _VERSION, "files": {**added, **self._used}}
                replace_file(self._file, [json.dumps(kept).encode()], sync=False)

    def _read(self) -> dict[str, Any]:
        kept = read_object(self._file, _MOST_BYTES)
        files = kept.get("files")
        return files if kept.get("version") == _VERSION and isinstance(files, dict) else {}


def _sound(facts: Facts) -> bool:
    """Whether each value has the right type: another program may have written the file."""
    same = all(type(getattr(facts, each.name)) is type(getattr(_BLANK, each.name)) for each in fields(Facts))
    return same and facts.role in get_args(Role)


def read_facts(path: Path) -> Facts:
    try:
        header = read_header(path)
        role = role_of(header)
        if role == "chat":
            check_vocabulary(header)
        size = sum(part.stat().st_size for part in header.parts)
    except SlipstreamError as error:
        return Facts((str(path),), size_of(path), problem=error.title, hint=error.hint)
    except OSError as error:
        reason = reason_of(error)
        return Facts((str(path),), 0, problem=f"{path} cannot be read: {reason}.", hint="Check its permissions.")
    return Facts(
        parts=tuple(map(str, header.parts)),
        size=size,
        architecture=header.architecture,
        title=header.name,
        params=parameters(header),
        context=header.n_ctx_train or 0,
        quant=label_of(header.metadata.get("general.file_type")),
        fingerprint=header.fingerprint,
        role=role,
        n_vocab=header.n_vocab,
        vocabulary=vocabulary_digest(header),
    )


def parameters(header: Header) -> int:
    return sum(prod(tensor.shape) for tensor in header.tensors)


def _stamp(parts: Sequence[str]) -> list[list[int]]:
    """Size, modification time and inode of each file."""
    found = [os.stat(part) for part in parts]
    return [[each.st_size, each.st_mtime_ns, each.st_ino] for each in found]
