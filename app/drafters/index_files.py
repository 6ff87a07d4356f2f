"""Which files below a path are text that is worth indexing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LARGEST: Final = 2_000_000
"""Most bytes of a file: larger ones are seldom written by a person."""

_LOOK: Final = 8_192  # bytes that tell most binary files
_PASSED_OVER: Final = frozenset({"node_modules", "__pycache__", "bower_components"})
_MARKS: Final = ("CACHEDIR.TAG", "pyvenv.cfg")  # lie in caches, builds of Rust, and virtual environments


@dataclass(slots=True)
class Skipped:
    """Files that were passed over, counted by why."""

    too_large: int = 0
    no_text: int = 0
    unreadable: int = 0

    def __str__(self) -> str:
        """Words, such as ``2 too large, 1 unreadable``; empty if nothing was skipped."""
        counts = ((self.too_large, "too large"), (self.no_text, "not text"), (self.unreadable, "unreadable"))
        return ", ".join(f"{count:,} {why}" for count, why in counts if count)


def text_files(path: Path, skipped: Skipped) -> Iterator[tuple[Path, int]]:
    """Finds the files below a folder that may be text.

    Hidden files and folders, links, caches and folders of installed packages are passed over; what is named by ``path``
    itself is taken.

    Args:
        path: A folder or a file; absolute.
        skipped: Counts what is left out.

    Yields:
        A file and the time of its last change in nanoseconds.
    """

    def unreadable(_error: OSError) -> None:
        skipped.unreadable += 1

    for file in [path] if path.is_file() else _walk(path, unreadable):
        try:
            facts = file.stat()
        except OSError:
            skipped.unreadable += 1
            continue
        if not stat.S_ISREG(facts.st_mode):
            continue
        if facts.st_size > LARGEST:
            skipped.too_large += 1
        else:
            yield file, facts.st_mtime_ns


def read_text(file: Path, skipped: Skipped) -> str | None:
    """Reads a file; None if it is not text, by its content, or cannot be read."""
    try:
        with file.open("rb") as source:
            raw = source.read(_LOOK)
            if b"\0" not in raw:
                raw += source.read(LARGEST)
    except OSError:
        skipped.unreadable += 1
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        skipped.no_text += 1
        return None
    return text


def _walk(folder: Path, on_error: Callable[[OSError], None]) -> Iterator[Path]:
    for here, folders, files in os.walk(folder, onerror=on_error):
        at = Path(here)
        if at != folder and any(mark in files for mark in _MARKS):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        for name in sorted(files):
            if not name.startswith(".") and not (at / name).is_symlink():
                yield at / name
