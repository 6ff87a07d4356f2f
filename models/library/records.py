"""What is known of the models on this machine: cached facts from their headers, and records of their sources."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Final, get_args

import gguf

from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.files import locked, make_folder, replace_file
from slipstream.models.gguf.reader import Header, read_header, stamp_of
from slipstream.models.gguf.tensors import replacing
from slipstream.models.gguf.vocabulary import Role, check_vocabulary, role_of, vocabulary_digest
from slipstream.models.library.places import Origin, StoreExtras
from slipstream.models.outside import count_of, is_sha256, read_json, read_object

_MOST_BYTES: Final = 1 << 16
_VERSION: Final = 2  # one more for each new field: a kept file without it has the default
_MOST_FACTS_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model on this machine; a broken one has a ``problem``."""

    name: str  # its name, unique in a list: ``qwen3-4b:Q4_K_M``
    path: Path  # its file, or the first of a split model
    files: tuple[Path, ...]  # all its files, ``path`` first; links are not resolved
    size: int  # bytes of all files
    sha256: str | None  # hash of its first file in hex; None if unknown
    origin: Origin  # the program whose folder it is in
    repo: str | None  # its repository on the hub, ``owner/name``; None if unknown
    quant: str  # its quantization, such as ``Q4_K_M``; empty if unknown
    architecture: str  # ``general.architecture``; empty for a broken file
    params: int
    context: int  # context that it was trained with, in tokens
    title: str = ""  # its name for people; untrusted
    fingerprint: str = ""  # ``Header.fingerprint``, which chats refer to; empty for a broken file
    role: Role = "chat"
    n_vocab: int = 0  # number of tokens in its vocabulary
    vocabulary: str = ""  # as ``vocabulary_digest``; empty for a broken file
    problem: str = ""  # what is wrong with it, in a sentence; empty if nothing is wrong
    hint: str = ""  # what to do about the problem
    extras: StoreExtras = field(default_factory=StoreExtras)

    @property
    def usable(self) -> bool:
        """Whether it is a chat model without a known problem."""
        return self.role == "chat" and not self.problem

    @property
    def foreign(self) -> bool:
        """Whether the user or another program keeps it; it is then never changed or deleted."""
        return self.origin not in ("ours", "bundled")


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a model."""

    model: InstalledModel
    sha256: tuple[str, ...]  # hash of each file
    expected: tuple[str | None, ...]  # expected hash of each file; None if unknown
    problem: str = ""  # what is wrong, in a sentence; empty if nothing is wrong
    hint: str = ""  # what to do about the problem


@dataclass(frozen=True, slots=True)
class RemovedModel:
    name: str
    freed: int  # bytes that deleting it frees; links free none
    files: tuple[Path, ...]  # the former paths of its files


@dataclass(frozen=True, slots=True)
class Record:
    """Source and expected content of a file."""

    sha256: str = ""  # hash of its content; empty if unknown
    size: int = 0  # length in bytes; 0 if unknown
    repo: str = ""  # its repository on the hub; empty if it is not from the hub
    revision: str = ""
    source: str = ""  # the path that it was imported from


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def record_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")


def read_record(path: Path) -> Record:
    """Reads the record of a model file; empty if it is missing or damaged."""
    with suppress(OSError, ValueError, TypeError):
        record = Record(**read_json(record_path(path), _MOST_BYTES))
        texts = (record.sha256, record.repo, record.revision, record.source)
        if count_of(record.size) is not None and all(isinstance(text, str) for text in texts):
            return record if not record.sha256 or is_sha256(record.sha256) else Record()
    return Record()


def write_record(path: Path, record: Record) -> None:
    with replacing(record_path(path)) as part:
        part.write_text(json.dumps(asdict(record)), "utf-8")


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
        self._file = file
        self._used: dict[str, Any] = {}
        self._kept = self._read()

    def of(self, path: Path) -> Facts:
        """The facts about a model file; facts about a broken file are not cached."""
        key = str(path)
        with suppress(OSError, TypeError, KeyError, ValueError, AttributeError):
            entry = self._kept[key]
            facts = Facts(**{**entry["facts"], "parts": tuple(map(str, entry["facts"]["parts"]))})
            if entry["stamp"] == stamp_of(facts.parts) and _sound(facts):
                self._used[key] = entry
                return facts
        facts = read_facts(path)
        if not facts.problem:
            with suppress(OSError):
                self._used[key] = {"stamp": stamp_of(facts.parts), "facts": asdict(facts)}
        return facts

    def keep(self) -> None:
        """Writes the facts used or added since the read and drops the rest; ignores errors, as models can be read."""
        if self._used == self._kept:
            return
        with suppress(OSError, SlipstreamError):
            make_folder(self._file.parent)
            with locked(self._file.with_name(".facts.lock"), 0.0):
                added = {key: entry for key, entry in self._read().items() if key not in self._kept}
                kept = {"version": _VERSION, "files": {**added, **self._used}}
                replace_file(self._file, [json.dumps(kept).encode()], sync=False)

    def _read(self) -> dict[str, Any]:
        kept = read_object(self._file, _MOST_FACTS_BYTES)
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
        quant=_label_of(header.metadata.get("general.file_type")),
        fingerprint=header.fingerprint,
        role=role,
        n_vocab=header.n_vocab,
        vocabulary=vocabulary_digest(header),
    )


def _label_of(file_type: object) -> str:
    """The label of ``general.file_type``, a ``llama_ftype`` of llama.cpp; empty if unknown."""
    with suppress(ValueError):
        return str(gguf.LlamaFileType(file_type).name).partition("_")[2]
    return ""


def parameters(header: Header) -> int:
    return sum(prod(tensor.shape) for tensor in header.tensors)
