"""Backs up the chats: once a day, and before each migration."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from slipstream.app.platform.paths import unwritable

VERSIONS: Final = 3  # number of backups of earlier versions
DAYS: Final = 7  # number of daily backups
DAY: Final = 86400.0


def backups(path: Path) -> list[Path]:
    return of_versions(path) + of_days(path)


def of_versions(path: Path) -> list[Path]:
    """The backups before migrations, oldest version first."""
    return sorted(
        path.parent.glob(f"{path.stem}-version-*{path.suffix}"), key=lambda backup: (len(backup.name), backup)
    )


def of_days(path: Path) -> list[Path]:
    """The daily backups, oldest first."""
    return sorted(path.parent.glob(f"{path.stem}-day-*{path.suffix}"))


def age(path: Path) -> float:
    """Seconds since the newest daily backup; infinity without one."""
    newest = of_days(path)[-1:]
    return abs(time.time() - newest[0].stat().st_mtime) if newest else float("inf")


def keep_version(path: Path, version: int) -> None:
    """Backs up a database before a migration; see ``_copy``.

    Args:
        path: The database, locked against writers.
        version: Its version, part of the copy's name.

    Raises:
        SlipstreamError: If the copy cannot be written.
        sqlite3.Error: If the database cannot be read, or the disk is full.
    """
    _copy(path, path.with_name(f"{path.stem}-version-{version}{path.suffix}"))
    for old in of_versions(path)[:-VERSIONS]:
        old.unlink(missing_ok=True)


def keep_day(path: Path) -> None:
    """Backs up a database if the newest daily backup is a day old; a damaged database replaces no backup.

    An older backup is kept if it has a chat that no newer one has: such a chat was lost, while a chat that the user
    deletes is erased from all backups.

    Raises:
        SlipstreamError: If the copy cannot be written.
        sqlite3.Error: If the database cannot be read or is damaged, or the disk is full.
    """
    if age(path) < DAY:
        return
    _copy(path, path.with_name(f"{path.stem}-day-{time.strftime('%Y-%m-%d')}{path.suffix}"))
    days = of_days(path)
    newer: set[str] = set().union(*map(_chats, days[-DAYS:]))
    for old in reversed(days[:-DAYS]):
        chats = _chats(old)
        if chats <= newer:
            old.unlink(missing_ok=True)
        newer |= chats


def drop_parts(path: Path) -> None:
    """Deletes unfinished copies of a killed process: they could still contain deleted chats."""
    for part in path.parent.glob(f".{path.stem}-*{path.suffix}.*"):
        part.unlink(missing_ok=True)


def forget_in_backups(path: Path, chat: str) -> None:
    """Erases a deleted chat from all backups; a backup that cannot be changed is deleted."""
    for backup in backups(path):
        try:
            with closing(sqlite3.connect(backup, isolation_level=None)) as db:
                for setting in ("journal_mode=MEMORY", "secure_delete=ON", "foreign_keys=ON"):
                    db.execute(f"PRAGMA {setting}").fetchall()
                db.execute("DELETE FROM chats WHERE id = ?", (chat,))
                optimize(db)
        except (sqlite3.Error, UnicodeDecodeError):
            with suppress(OSError):
                backup.unlink()


def verify(db: sqlite3.Connection) -> None:
    """Checks a database and its full-text indexes.

    Raises:
        sqlite3.DatabaseError: If it is damaged.
    """
    if (verdict := str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])) != "ok":
        raise sqlite3.DatabaseError(f"database corruption: {verdict}")
    for table in _indexes(db):
        db.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")
    db.rollback()


def optimize(db: sqlite3.Connection) -> None:
    """Merges the full-text indexes, if there are any; only that removes deleted words from them."""
    for table in _indexes(db):
        db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")


def _indexes(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE name IN ('message_words', 'title_words')").fetchall()
    return [str(row[0]) for row in rows]


def _chats(backup: Path) -> set[str]:
    """The ids of all chats of a backup; none if it cannot be read."""
    try:
        with closing(sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return {str(chat) for (chat,) in db.execute("SELECT id FROM chats")}
    except (sqlite3.Error, UnicodeDecodeError):
        return set()


def _copy(path: Path, backup: Path) -> None:
    """Makes a complete, checked copy that only its owner can read; leaves no file on failure."""
    part = backup.with_name(f".{backup.name}.{os.getpid()}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600))
        # copies pages, since VACUUM INTO may renumber the rows; mode=rw, since SQLite would create a missing file
        existing = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(existing, uri=True)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()  # in WAL mode the copy would have a log, too
            verify(copy)
        os.replace(part, backup)
    except OSError as error:
        raise unwritable(backup, error) from error
    finally:
        with suppress(OSError):  # the folder itself may be gone
            part.unlink(missing_ok=True)
