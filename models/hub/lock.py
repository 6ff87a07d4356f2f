"""Locks files until their process ends, and checks whether another program replaced a file."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path


class HeldError(Exception):
    """Another process, or another download of this process, holds the lock."""


def open_locked(path: Path) -> int:
    """Opens or creates a file and locks it until it is closed.

    Raises:
        HeldError: If it is locked already.
        OSError: If it cannot be opened.
    """
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
    """Opens or creates a file for reading and writing.

    Raises:
        OSError: If it cannot be opened, or is a link or a pipe.
    """
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
