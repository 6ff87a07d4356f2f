"""Remembers which model files passed a probe, so that each is probed once."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import read_header

MOST: Final = 1_000
"""Files that are remembered; the ones probed first are forgotten first."""


class ProbeRecord:
    """Files by path, with size, time and place on disk: any change, or another llama.cpp, and it is probed again."""

    def __init__(self, file: Path, build: str) -> None:
        """Reads the record; one that is missing or damaged is empty.

        Args:
            file: Where it is kept; may be deleted at any time.
            build: Names the llama.cpp that the probes were made with.
        """
        self._file, self._build = file, build
        self._kept: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(file.read_text("utf-8"))
            if isinstance(kept, dict) and kept.get("build") == build and isinstance(kept.get("files"), dict):
                self._kept = kept["files"]

    def holds(self, path: Path) -> bool:
        """Whether a file passed a probe as it is now."""
        kept = self._kept.get(str(path))
        if kept is None:
            return False
        with suppress(SlipstreamError, OSError):
            return bool(kept == _stamp(path))
        return False

    def add(self, path: Path) -> None:
        """Remembers a file that passed; where that cannot be kept it is probed again, which costs time only."""
        with suppress(SlipstreamError, OSError):
            self._kept.pop(str(path), None)
            self._kept = dict([*self._kept.items(), (str(path), _stamp(path))][-MOST:])
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = self._file.with_name(f"{self._file.name}.{os.getpid()}.part")
            with open(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump({"build": self._build, "files": self._kept}, file)
            os.replace(part, self._file)


def _stamp(path: Path) -> list[list[int]]:
    """What changes when one of a model's files does."""
    found = [os.stat(part) for part in read_header(path).parts]
    return [[each.st_size, each.st_mtime_ns, each.st_ino] for each in found]
