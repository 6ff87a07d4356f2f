"""Opens the database of chats with private modes and safe settings; a damaged file is rescued, never deleted."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Final

from slipstream.app.chats.backups import DAY, age, backups, drop_parts, verify
from slipstream.app.chats.locking import is_remote
from slipstream.app.chats.records import readable
from slipstream.app.chats.rescue import SIDE_FILES, drop_old, finish, is_marked, rescue
from slipstream.app.chats.salvage import is_log_damaged
from slipstream.app.chats.schema import migrate
from slipstream.app.platform.paths import private_folder, unwritable, worded
from slipstream.models.errors import SlipstreamError

SETTINGS: Final = (
    "busy_timeout=5000",  # another program may be reading
    "synchronous=FULL",
    "temp_store=MEMORY",  # for the table of changed rows, which must work on a full disk
    "fullfsync=ON",  # macOS: fsync alone may leave data in the drive's cache
    "foreign_keys=ON",
    "mmap_size=0",
    "cell_size_check=ON",
    "secure_delete=ON",
)
QUICK_TO_CHECK: Final = 8 << 20
"""A database of fewer bytes is checked at every start; a larger one is checked after a crash."""
UNCHECKED: Final = 7 * DAY  # a database of any size is checked if its newest backup is older than these seconds
_DAMAGED: Final = (
    "malformed",
    "not a database",
    "file is encrypted",
    "database corruption",
    "vtable constructor",
    "file format",
)


def open_database(path: Path, alone: bool) -> tuple[sqlite3.Connection, str]:
    """Opens a database; creates it and its folder if they are missing.

    Args:
        alone: Whether no other process has it open; only then may a damaged one be moved.

    Returns:
        The connection, and a line for the user if a damaged file was replaced, else "".
    """
    private_folder(path.parent)
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would block
        raise SlipstreamError(f"{path} is no file.", "Move it elsewhere and start again.")
    why = ""
    if alone:
        with worded(path):
            finish(path)
            drop_parts(path)
        drop_old(path)
        why = _damage(path)
    elif not path.exists():  # deleted while another process has it open; a new file must not share the old log
        for side in SIDE_FILES:
            path.with_name(path.name + side).unlink(missing_ok=True)
    try:
        if not why:
            unclean = path.with_name(path.name + "-wal").exists()  # a clean end deletes it
            _create(path)
            small = path.stat().st_size < QUICK_TO_CHECK
            return _connect(path, check=alone and (unclean or small or age(path) > UNCHECKED)), ""
    except sqlite3.DatabaseError as error:
        # a damaged schema makes statements fail with the generic error
        generic = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_ERROR
        if not is_damage(error) and not generic:
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
    """Describes damage that SQLite does not detect, or that crashes it; empty if there is none."""
    if path.is_dir():
        return "was a folder"
    log = path.with_name(path.name + "-wal")
    logged = log.exists() and log.stat().st_size > 0
    if is_marked(path):
        return "was damaged"
    header = _header(path)
    if not header and (logged or backups(path)):
        return "was empty" if header == b"" else "was missing"
    if header and (len(header) < 100 or not {*header[18:20]} <= {1, 2}):  # SQLite would overwrite it, or refuse it
        return "was damaged"
    return "had a damaged log" if logged and is_log_damaged(log) else ""


def _header(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unwritable(path, error) from error


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether an error means a damaged file, not a busy, full or missing one."""
    return isinstance(error, UnicodeDecodeError) or any(word in str(error) for word in _DAMAGED)


def storage_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> SlipstreamError:
    """Turns an error of SQLite into an error for the user."""
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
        f"cannot write to {path}: {reason.rstrip('.')}.",
        "Fix its rights, or set SLIPSTREAM_HOME to a folder that you can write to.",
    )


def _create(path: Path) -> None:
    """Creates the file before SQLite does, so that only its owner can read it and its side files."""
    with worded(path):
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if sys.platform != "win32":
                os.fchmod(handle, 0o600)
        finally:
            os.close(handle)


def _connect(path: Path, check: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.text_factory = readable
    try:
        # a write-ahead log needs memory that all readers share, so it cannot work on a network file system
        for setting in (*SETTINGS, f"journal_mode={'TRUNCATE' if is_remote(path.parent) else 'WAL'}"):
            db.execute(f"PRAGMA {setting}").fetchall()
        if check:
            verify(db)
        migrate(db, path)
    except UnicodeDecodeError as error:  # the message quotes the damaged file
        db.close()
        raise sqlite3.DatabaseError("database corruption: garbled words") from error
    except BaseException:
        db.close()
        raise
    return db
