"""Values that describe installed models, and the record file beside each of our own model files."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from slipstream.models.gguf.vocabulary import Role
from slipstream.models.gguf.writer import replacing
from slipstream.models.outside import count_of, read_json

Origin = Literal["ours", "bundled", "hf-cache", "lmstudio", "ollama", "llama.cpp"]
"""Whose folder a model lies in: ours, the package's, or that of another program."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A model on this machine; a broken one has a ``problem``.

    Attributes:
        name: Its name, unique in a list: ``qwen3-4b:Q4_K_M``.
        path: Its file, or the first of a split model.
        files: All its files, ``path`` first; links are not resolved.
        size: Bytes of all files.
        sha256: Hash of its first file in hex; None if unknown.
        origin: The program whose folder it is in.
        repo: Its repository on the hub, ``owner/name``; None if unknown.
        quant: Its quantization, such as ``Q4_K_M``; empty if unknown.
        architecture: ``general.architecture``; empty for a broken file.
        params: Number of its parameters.
        context: Tokens of context that it was trained with.
        title: The name in its header; untrusted.
        fingerprint: As ``Header.fingerprint``, by which chats refer to it; empty for a broken file.
        role: Its use.
        n_vocab: Number of tokens in its vocabulary.
        vocabulary: As ``vocabulary_digest``; empty for a broken file.
        problem: What is wrong with it, in a sentence; empty if nothing is.
        hint: What to do about the problem.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    size: int
    sha256: str | None
    origin: Origin
    repo: str | None
    quant: str
    architecture: str
    params: int
    context: int
    title: str = ""
    fingerprint: str = ""
    role: Role = "chat"
    n_vocab: int = 0
    vocabulary: str = ""
    problem: str = ""
    hint: str = ""

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
    """The result of verifying a model.

    Attributes:
        model: The model.
        sha256: Hash of each file.
        expected: Expected hash of each file; None if unknown.
        problem: What is wrong, in a sentence; empty if nothing is.
        hint: What to do about it.
    """

    model: Installed
    sha256: tuple[str, ...]
    expected: tuple[str | None, ...]
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """A model in the trash.

    Attributes:
        name: Its name.
        freed: Bytes that emptying the trash frees; links hold none.
        files: The former paths of its files.
    """

    name: str
    freed: int
    files: tuple[Path, ...]


_MOST_BYTES: Final = 1 << 16
_SHA_256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Record:
    """Source and expected content of a file.

    Attributes:
        sha256: Hash of its content; empty if unknown.
        size: Length in bytes; 0 if unknown.
        repo: Its repository on the hub; empty if it is not from the hub.
        revision: Its commit.
        source: The path that it was imported from.
    """

    sha256: str = ""
    size: int = 0
    repo: str = ""
    revision: str = ""
    source: str = ""


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def record_path(path: Path) -> Path:
    """The path of a model file's record."""
    return path.with_name(f".{path.name}.json")


def read_record(path: Path) -> Record:
    """Reads the record of a model file; empty if it is missing or damaged."""
    with suppress(OSError, ValueError, TypeError):
        record = Record(**read_json(record_path(path), _MOST_BYTES))
        texts = (record.sha256, record.repo, record.revision, record.source)
        if count_of(record.size) is not None and all(isinstance(text, str) for text in texts):
            return record if not record.sha256 or _SHA_256.fullmatch(record.sha256) else Record()
    return Record()


def write_record(path: Path, record: Record) -> None:
    """Writes the record of a model file.

    Raises:
        SlipstreamError: If it cannot be written.
    """
    with replacing(record_path(path)) as part:
        part.write_text(json.dumps(asdict(record)), "utf-8")
