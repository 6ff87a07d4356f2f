"""What drafters learn of a target, kept in files from one run to the next."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from slipstream.models.files import make_folder, replace_file


class Memory:
    """Files of one model in a cache folder; they may vanish at any time, and cost speed alone.

    Processes may share the folder: files are replaced whole, and the last writer stays.
    """

    def __init__(self, folder: Path, model: str) -> None:
        """Keeps where the files are; nothing is made yet.

        Args:
            model: Fingerprint of the model.
        """
        self._folder, self._model = folder, model

    def read(self, name: str) -> bytes | None:
        """What was kept under a drafter's name; None if it is missing, cut off, damaged, or of another model."""
        try:
            raw = self._path(name).read_bytes()
        except OSError:
            return None
        digest, content = raw[:32], raw[32:]
        return content if digest == self._digest(name, content) else None

    def write(self, name: str, content: bytes) -> None:
        """Keeps bytes under a drafter's name, readable by their owner alone, whole or not at all.

        A disk that is full or read-only keeps what it had.
        """
        with suppress(OSError):
            make_folder(self._folder)
            replace_file(self._path(name), (self._digest(name, content), content), sync=False)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._model[:16]}.{name}"

    def _digest(self, name: str, content: bytes) -> bytes:
        return hashlib.sha256(f"{self._model} {name} ".encode() + content).digest()
