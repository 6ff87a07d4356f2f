"""What is known of a file of ours beside its bytes: a small record in a hidden file next to it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from slipstream.models.gguf_write import replacing

_SHA_256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Record:
    """Where a file is from, and what its content should be.

    Attributes:
        sha256: Of its content; empty if nobody knows.
        size: Bytes; 0 if nobody knows.
        repo: The repository on the hub; empty if it is from elsewhere.
        revision: The commit.
        source: The path that it was imported from.
    """

    sha256: str = ""
    size: int = 0
    repo: str = ""
    revision: str = ""
    source: str = ""


def record_path(path: Path) -> Path:
    """The file that keeps the record of a model file."""
    return path.with_name(f".{path.name}.json")


def read_record(path: Path) -> Record:
    """The record of a model file; an empty one if there is none or it is damaged."""
    with suppress(OSError, ValueError, TypeError):
        record = Record(**json.loads(record_path(path).read_text("utf-8")))
        if isinstance(record.size, int) and all(isinstance(v, str) for k, v in asdict(record).items() if k != "size"):
            return record if not record.sha256 or _SHA_256.fullmatch(record.sha256) else Record()
    return Record()


def write_record(path: Path, record: Record) -> None:
    """Keeps the record of a model file.

    Raises:
        SlipstreamError: If it cannot be written.
    """
    with replacing(record_path(path)) as part:
        part.write_text(json.dumps(asdict(record)), "utf-8")
