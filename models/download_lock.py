"""One process per file: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 40, os.SEEK_SET)  # beyond its text, which others may read
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class HeldError(Exception):
    """Another process, or another download of this one, holds the lock."""


def open_locked(path: Path) -> int:
    """Opens a file for reading and writing, makes it if need be, and locks it until it is closed.

    Raises:
        HeldError: If someone else has it locked.
        OSError: If it cannot be opened.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                raise HeldError from None
            raise
        if _same(handle, path):
            return handle
        os.close(handle)  # its last holder has finished and removed it meanwhile


def close_removed(handle: int, path: Path) -> None:
    """Removes a locked file and gives up the lock, in the order that the system allows."""
    if sys.platform == "win32":
        os.close(handle)
        path.unlink(missing_ok=True)
    else:
        path.unlink(missing_ok=True)
        os.close(handle)


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
