"""What a listing shows of a model file, kept from one time to the next: a large vocabulary takes long to read."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.gguf import Header, read_header
from slipstream.models.heads import ARCHITECTURE as HEADS
from slipstream.models.store_names import label_of
from slipstream.models.store_types import Role
from slipstream.models.vocabulary import check_vocabulary, vocabulary_digest

_VERSION: Final = 1
_DRAFT_ONLY: Final = frozenset({HEADS, "eagle3", "dflash", "dspark"})
_DRAFT_ONLY_ENDINGS: Final = ("-assistant", "_assistant")  # Gemma 4's MTP heads, under both spellings
_NO_CHAT: Final = frozenset({"clip", "t5encoder", "wavtokenizer-dec", "gemma-embedding"})
_ENCODERS: Final = "bert"  # architectures whose name ends so make embeddings


@dataclass(frozen=True, slots=True)
class Facts:
    """What one model file says about itself, or what is wrong with it.

    Attributes:
        parts: All its files, the first one first.
        size: Bytes of all files.
        architecture: ``general.architecture``.
        title: The name in its header.
        params: Number of parameters.
        context: Tokens of context that it was trained with.
        quant: The label that its header gives.
        fingerprint: As ``Header.fingerprint``.
        role: What it is good for.
        n_vocab: Number of tokens in its vocabulary.
        vocabulary: As ``vocabulary_digest``.
        problem: What is wrong with it; empty if nothing is.
        hint: What to do about it.
    """

    parts: tuple[str, ...]
    size: int
    architecture: str = ""
    title: str = ""
    params: int = 0
    context: int = 0
    quant: str = ""
    fingerprint: str = ""
    role: Role = "chat"
    n_vocab: int = 0
    vocabulary: str = ""
    problem: str = ""
    hint: str = ""


class FactsCache:
    """Facts by path, good as long as size, time and place on disk are what they were."""

    def __init__(self, file: Path) -> None:
        """Opens the cache, empty if the file is missing or was written by another version.

        Args:
            file: Where it is kept; may be deleted at any time.
        """
        self._file = file
        self._kept: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(file.read_text("utf-8"))
            if isinstance(kept, dict) and kept.get("version") == _VERSION and isinstance(kept.get("files"), dict):
                self._kept = kept["files"]

    def of(self, path: Path) -> Facts:
        """The facts of a model file; a broken one is no error, and is looked at anew each time."""
        key = str(path)
        with suppress(OSError, TypeError, KeyError, ValueError, AttributeError):
            entry = self._kept[key]
            facts = Facts(**{**entry["facts"], "parts": tuple(entry["facts"]["parts"])})
            if entry["stamp"] == _stamp(facts.parts):
                self._used[key] = entry
                return facts
        facts = read_facts(path)
        if not facts.problem:
            with suppress(OSError):
                self._used[key] = {"stamp": _stamp(facts.parts), "facts": asdict(facts)}
        return facts

    def keep(self) -> None:
        """Writes what was looked at since the cache was opened and forgets the rest; where it cannot, it costs time."""
        if self._used == self._kept:
            return
        part = self._file.with_name(f"{self._file.name}.{os.getpid()}-{threading.get_ident()}.part")
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_text(json.dumps({"version": _VERSION, "files": self._used}), "utf-8")
            os.replace(part, self._file)


def read_facts(path: Path) -> Facts:
    """Reads the header of a model file."""
    try:
        header = read_header(path)
        role = role_of(header)
        if role == "chat":
            check_vocabulary(header)
        size = sum(part.stat().st_size for part in header.parts)
    except SlipstreamError as error:
        return Facts((str(path),), _size(path), problem=error.title, hint=error.hint)
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
    """Number of a model's parameters."""
    return sum(prod(tensor.shape) for tensor in header.tensors)


def role_of(header: Header) -> Role:
    """What a file is good for, by its architecture and, for heads that llama.cpp fetches by name, its name."""
    architecture = header.architecture
    if architecture in _DRAFT_ONLY or architecture.endswith(_DRAFT_ONLY_ENDINGS):
        return "drafter"
    if architecture in _NO_CHAT or architecture.endswith(_ENCODERS):
        return "other"
    return "drafter" if header.path.name.lower().startswith("mtp-") else "chat"


def _stamp(parts: Sequence[str]) -> list[list[int]]:
    """What changes when a file does."""
    found = [os.stat(part) for part in parts]
    return [[each.st_size, each.st_mtime_ns, each.st_ino] for each in found]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
