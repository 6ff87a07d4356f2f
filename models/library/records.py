"""Types that describe installed models, and the record file of each model file in Slipstream's folder."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from slipstream.models.gguf.vocabulary import Role
from slipstream.models.gguf.writer import replacing
from slipstream.models.outside import count_of, is_sha256, read_json

Origin = Literal["ours", "bundled", "hf-cache", "lmstudio", "ollama", "llama.cpp"]
"""The owner of a model's folder: Slipstream, its package, or another program."""
_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Installed:
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
    title: str = ""  # the name in its header; untrusted
    fingerprint: str = ""  # ``Header.fingerprint``, which chats refer to; empty for a broken file
    role: Role = "chat"
    n_vocab: int = 0  # number of tokens in its vocabulary
    vocabulary: str = ""  # as ``vocabulary_digest``; empty for a broken file
    problem: str = ""  # what is wrong with it, in a sentence; empty if nothing is wrong
    hint: str = ""  # what to do about the problem

    @property
    def usable(self) -> bool:
        """Whether it is a chat model without a known problem."""
        return self.role == "chat" and not self.problem

    @property
    def foreign(self) -> bool:
        """Whether another program owns it; it is then never changed or deleted."""
        return self.origin not in ("ours", "bundled")


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of verifying a model."""

    model: Installed
    sha256: tuple[str, ...]  # hash of each file
    expected: tuple[str | None, ...]  # expected hash of each file; None if unknown
    problem: str = ""  # what is wrong, in a sentence; empty if nothing is wrong
    hint: str = ""  # what to do about the problem


@dataclass(frozen=True, slots=True)
class Removed:
    """A model that was removed."""

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
