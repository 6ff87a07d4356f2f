"""Private files: readable by their owner alone, whole or not at all, changed by one process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from slipstream.models.errors import SlipstreamError, reason_of
from slipstream.models.quoting import shown_path

Bytes = bytes | memoryview

LOCK: Final = "lock"
_PATIENCE: Final = 10.0  # seconds; the lock is never held while contexts are sorted
_LARGEST_WRITE: Final = 1 << 30  # Linux writes at most 2 GiB at once


def make_folder(folder: Path) -> None:
    """Makes a folder that only its owner can enter, and closes one that others could."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "posix" and folder.stat().st_mode & 0o077:
        os.chmod(folder, 0o700)


def write_file(path: Path, parts: Iterable[Bytes]) -> None:
    """Writes a file and waits until it is on the disk."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
    try:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(handle, rest[:_LARGEST_WRITE]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Gives a file new content: at any moment it has the old or the new; ``sync_folder`` makes that last."""
    part = path.with_name(path.name + ".part")
    write_file(part, [content])
    os.replace(part, path)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    if os.name != "posix":
        return  # Windows opens no folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes, and other threads, from changing a folder.

    Raises:
        SlipstreamError: If another holds it for more than ten seconds.
    """
    handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)  # which also unlocks


@contextmanager
def worded(folder: Path) -> Iterator[None]:
    """Turns errors of the disk into words."""
    try:
        yield
    except OSError as error:
        reason = reason_of(error)
        raise SlipstreamError(
            f"cannot write the text index in {shown_path(folder)}: {reason}.",
            "Free some room there, or check the folder and its permissions.",
        ) from error


def _lock(handle: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: each process takes itself for the only one
        return
    patience = time.monotonic() + _PATIENCE
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
            return
        if time.monotonic() > patience:
            raise SlipstreamError(
                f"the text index in {shown_path(folder)} is being changed by another slipstream.", "Try again later."
            )
        time.sleep(0.005)
