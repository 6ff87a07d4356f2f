"""Opens the database of chats: private modes, safe settings, and a damaged file rescued, never deleted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import IO, Final

from slipstream.app.chats.backups import DAY, age, backups, drop_parts, verify
from slipstream.app.chats.place import is_remote
from slipstream.app.chats.records import readable
from slipstream.app.chats.rescue import drop_old, finish, is_marked, rescue
from slipstream.app.chats.schema import migrate
from slipstream.app.chats.write_ahead import is_damaged
from slipstream.app.paths import private_folder, unwritable
from slipstream.models.errors import SlipstreamError

SETTINGS: Final = (
    "busy_timeout=5000",  # another program may be reading
    "synchronous=FULL",
    "fullfsync=ON",  # macOS: an fsync alone may stay in the drive
    "foreign_keys=ON",
    "mmap_size=0",
    "cell_size_check=ON",
    "secure_delete=ON",
)
QUICK_TO_CHECK: Final = 8 << 20
"""Bytes of a database that is checked at every start; a larger one after a crash, and when no backup succeeds."""
UNCHECKED: Final = 7 * DAY
"""Seconds after which all of a database is checked; a daily backup is checked, too."""
_DAMAGED: Final = (
    "malformed",
    "not a database",
    "file is encrypted",
    "database corruption",
    "vtable constructor",
    "file format",
)


def open_database(path: Path, alone: bool) -> tuple[sqlite3.Connection, str]:
    """Opens the database at ``path``, making it and its folder if they are missing.

    Args:
        path: The file.
        alone: Whether no other process has it open; only then may a damaged one be moved.

    Returns:
        The connection, and a line for the user if a damaged file was replaced, else "".

    Raises:
        SlipstreamError: If the place cannot be written to, or a newer slipstream made the file.
    """
    private_folder(path.parent)
    why = ""
    if alone:
        try:
            finish(path)
            drop_parts(path)
        except OSError as error:
            raise unwritable(path, error) from error
        drop_old(path)
        why = _damage(path)
    try:
        if not why:
            unclean = path.with_name(path.name + "-wal").exists()  # a clean end removes it
            _create(path)
            small = path.stat().st_size < QUICK_TO_CHECK
            return _connect(path, check=alone and (unclean or small or age(path) > UNCHECKED)), ""
    except sqlite3.DatabaseError as error:
        # what makes no sense to SQLite itself, such as a list of tables that is not what was written
        senseless = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_ERROR
        if not is_damage(error) and not senseless:
            raise storage_error(path, error) from error
        if not alone:
            raise SlipstreamError(
                f"the chats in {path} are damaged.",
                "Close every other slipstream and start again: what can be read is rescued then.",
            ) from error
        why = "was damaged"
    try:
        notice = rescue(path, why)
        _create(path)
        return _connect(path, check=False), notice
    except sqlite3.Error as error:
        raise storage_error(path, error) from error


def _damage(path: Path) -> str:
    """What is wrong with a database that SQLite would not notice, or not survive; else empty."""
    if path.is_dir():
        return "was a folder"
    log = path.with_name(path.name + "-wal")
    logged = log.exists() and log.stat().st_size > 0
    if is_marked(path):
        return "was damaged"
    header = _header(path)
    if header == b"" and (logged or backups(path)):
        return "was empty"
    if header and (len(header) < 100 or not {*header[18:20]} <= {1, 2}):  # SQLite would write over it, or not at all
        return "was damaged"
    return "had a damaged log" if logged and is_damaged(log) else ""


def _header(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unwritable(path, error) from error


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Tells a damaged file from a busy, full or missing one."""
    return isinstance(error, UnicodeDecodeError) or any(word in str(error) for word in _DAMAGED)


def storage_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> SlipstreamError:
    """Words an error of the database."""
    if is_damage(error):
        return SlipstreamError(
            f"the chats in {path} are damaged.", "Start slipstream again: it rescues what can be read."
        )
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
    except BlockingIOError:
        alone = False
    except OSError:  # a file system without locks: as on Windows
        return lock, True
    with contextlib.suppress(OSError):
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
    db.text_factory = readable
    try:
        # a write-ahead log wants memory that all its readers share
        for setting in (*SETTINGS, f"journal_mode={'TRUNCATE' if is_remote(path.parent) else 'WAL'}"):
            db.execute(f"PRAGMA {setting}").fetchall()
        if check:
            verify(db)
        migrate(db, path)
    except UnicodeDecodeError as error:  # the error's own words came from the file
        db.close()
        raise sqlite3.DatabaseError("database corruption: garbled words") from error
    except BaseException:
        db.close()
        raise
    return db
