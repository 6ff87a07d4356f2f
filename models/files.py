"""Writes files that only their owner can read, replaces files atomically, and locks files until their process ends."""

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from slipstream.models.errors import SlipstreamError
from slipstream.models.outside import shown_path

Bytes = bytes | bytearray | memoryview
_LARGEST_WRITE: Final = 1 << 30  # Linux writes at most 2 GiB at once
_PATIENCE_S: Final = 10.0  # seconds that a change waits for another process's
_POLL_S: Final = 0.02
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class HeldError(Exception):
    """Another process, or another user of the lock in this process, holds it."""


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


def remove_empty(folder: Path, root: Path) -> None:
    """Removes an empty folder, and those above it that become empty, up to but without ``root``."""
    with suppress(OSError):  # not empty, or already removed
        while folder != root and folder.is_relative_to(root):
            folder.rmdir()
            folder = folder.parent


def open_locked(path: Path) -> int:
    """Opens or creates a file and locks it until it is closed; raises ``HeldError`` if it is locked already."""
    from filelock import lock_descriptor  # slow to load, and the chat's first screen needs no lock

    while True:
        handle = open_own(path)
        try:
            if not lock_descriptor(handle, blocking=False):
                raise HeldError
        except BaseException:
            os.close(handle)
            raise
        if is_at(handle, path):
            return handle
        os.close(handle)  # the previous holder removed the file after it was opened here


def open_own(path: Path) -> int:
    """Opens or creates a file for reading and writing; raises ``OSError`` if it is a link or a pipe."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no file")
    return handle


def close_removed(handle: int, path: Path) -> None:
    """Removes a locked file and releases the lock; Windows needs the opposite order."""
    if sys.platform == "win32":
        os.close(handle)
        path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
        os.close(handle)


def is_at(handle: int, path: Path) -> bool:
    """Whether a path still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def locked(path: Path, seconds: float = _PATIENCE_S) -> Iterator[None]:
    """Holds the lock of a file, which is created if needed, while something that it guards is read and written.

    A file system without locks gives none; a lock that another process holds for too long is an error.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            handle = open_locked(path)
            break
        except HeldError:
            if time.monotonic() >= until:
                raise SlipstreamError(
                    f"another slipstream is changing {shown_path(path.parent)}: nothing was changed.",
                    "Wait until it has finished, or end it, then try again.",
                ) from None
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            yield
            return
    try:
        yield
    finally:
        os.close(handle)
