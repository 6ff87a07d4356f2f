"""Writes files that only their owner can read, and replaces files atomically."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

Bytes = bytes | bytearray | memoryview

_LARGEST_WRITE: Final = 1 << 30  # Linux writes at most 2 GiB at once


def make_folder(folder: Path) -> None:
    """Makes a folder and its missing parents; ``mkdir`` alone would make parents that every user can read."""
    for missing in [*reversed([above for above in folder.parents if not above.exists()]), folder]:
        missing.mkdir(mode=0o700, exist_ok=True)


def write_file(path: Path, parts: Iterable[Bytes], sync: bool = True) -> None:
    """Writes a file, and waits until it is on the disk unless ``sync`` is off."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    try:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(handle, rest[:_LARGEST_WRITE]) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, parts: Iterable[Bytes], sync: bool = True) -> None:
    """Replaces a file atomically; call ``sync_folder`` to make the rename survive a power failure."""
    new = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        write_file(new, parts, sync)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Waits until the folder's entries are on the disk."""
    if sys.platform == "win32":
        return  # Windows cannot open folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
