"""Opens the database of chats: private modes, safe settings, and a damaged file set aside, never deleted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from typing import IO

from slipstream.app.chats.schema import migrate
from slipstream.app.paths import private_folder, unwritable
from slipstream.models.errors import SlipstreamError

SETTINGS = (
    "busy_timeout=5000",  # another slipstream may be writing
    "journal_mode=WAL",
    "synchronous=NORMAL",
    "fullfsync=ON",  # macOS: an fsync alone may stay in the drive
    "foreign_keys=ON",
    "mmap_size=0",
    "cell_size_check=ON",
    "secure_delete=ON",
)
SIDE_FILES = ("", "-wal", "-shm")
QUICK_TO_CHECK = 32 << 20
"""Bytes of a database that is checked at every start; a larger one only after a crash."""
_DAMAGED = ("malformed", "not a database", "file is encrypted", "database corruption")


def open_database(path: Path, alone: bool) -> tuple[sqlite3.Connection, str]:
    """Opens the database at ``path``, making it and its folder if they are missing.

    Args:
        path: The file.
        alone: Whether no other process has it open; only then may a damaged one be moved.

    Returns:
        The connection, and a line for the user if a damaged file was set aside, else "".

    Raises:
        SlipstreamError: If the place cannot be written to, or a newer slipstream made the file.
    """
    private_folder(path.parent)
    unclean = path.with_name(path.name + "-wal").exists()  # a clean end removes it
    _create(path)
    try:
        return _connect(path, check=alone and (unclean or path.stat().st_size < QUICK_TO_CHECK)), ""
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise storage_error(path, error) from error
        if not alone:
            raise SlipstreamError(
                f"the chats in {path} are damaged.",
                "Close every other slipstream and start again: they are set aside then.",
            ) from error
    aside = _set_aside(path)
    _create(path)
    notice = f"The chats in {path.name} could not be read ({aside.name} keeps them as they are); a new file was begun."
    return _connect(path, check=False), notice


def is_damage(error: sqlite3.Error) -> bool:
    """Tells a damaged file from a busy, full or missing one."""
    return any(word in str(error) for word in _DAMAGED)


def storage_error(path: Path, error: sqlite3.Error) -> SlipstreamError:
    """Words an error of the database."""
    if is_damage(error):
        return SlipstreamError(f"the chats in {path} are damaged.", "Start slipstream again: it sets the file aside.")
    reason = str(error)
    if "locked" in reason or "busy" in reason:
        return SlipstreamError(f"{path} is in use by another program.", "Close it and try again.")
    if "full" in reason:
        return SlipstreamError(f"cannot write to {path}: the disk is full.", "Make some room and try again.")
    return SlipstreamError(
        f"cannot write to {path}: {reason}.",
        "Fix its rights, or set SLIPSTREAM_HOME to a folder that you can write to.",
    )


def hold(path: Path) -> tuple[IO[bytes], bool]:
    """Notes in a lock file beside the database that this process has it open.

    Returns:
        The lock, to be kept open, and whether this process was the first.

    Raises:
        SlipstreamError: If the place cannot be written to.
    """
    private_folder(path.parent)
    name = path.with_name(path.name + ".lock")
    try:
        lock = os.fdopen(os.open(name, os.O_CREAT | os.O_RDWR, 0o600), "r+b")
    except OSError as error:
        raise unwritable(name, error) from error
    try:
        import fcntl
    except ImportError:  # Windows: each process takes itself for the only one
        return lock, True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:
        alone = False
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH)
    return lock, alone


def _create(path: Path) -> None:
    """Makes the file before SQLite does, so that it and its side files are its owner's alone."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if os.name == "posix":
                os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        raise unwritable(path, error) from error


def _connect(path: Path, check: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for setting in SETTINGS:
            db.execute(f"PRAGMA {setting}").fetchall()
        if check and (verdict := str(db.execute("PRAGMA quick_check(1)").fetchone()[0])) != "ok":
            raise sqlite3.DatabaseError(f"database corruption: {verdict}")
        migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _set_aside(path: Path) -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    number = 2
    while aside.exists():
        aside = path.with_name(f"{path.stem}-damaged-{stamp}-{number}{path.suffix}")
        number += 1
    for side in SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + side), aside.with_name(aside.name + side))
    return aside
