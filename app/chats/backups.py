"""Copies of the chats from before their tables were changed."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from slipstream.app.paths import unwritable

KEPT = 3
"""Backups that stay; the oldest leave first."""


def backups(path: Path) -> list[Path]:
    """The backups of a database, of the oldest version first."""
    return sorted(
        path.parent.glob(f"{path.stem}-version-*{path.suffix}"), key=lambda backup: (len(backup.name), backup)
    )


def keep_backup(path: Path, version: int) -> None:
    """Copies a database, whole or not at all, for its owner alone.

    Args:
        path: The database; its writers wait meanwhile.
        version: Its version, which names the copy.

    Raises:
        SlipstreamError: If the copy cannot be written.
        sqlite3.Error: If the database cannot be read, or the disk is full.
    """
    backup = path.with_name(f"{path.stem}-version-{version}{path.suffix}")
    part = backup.with_name(f".{backup.name}.{os.getpid()}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600))
        # page by page and not VACUUM INTO, which may number the rows anew
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()  # a copy of a log's database would make a log itself
        os.replace(part, backup)
    except OSError as error:
        raise unwritable(backup, error) from error
    finally:
        part.unlink(missing_ok=True)
    for old in backups(path)[:-KEPT]:
        old.unlink(missing_ok=True)


def forget_in_backups(path: Path, chat: str) -> None:
    """Takes a deleted chat out of all backups; one that cannot be changed is deleted.

    Args:
        path: The database that was backed up.
        chat: The chat's id.
    """
    for backup in backups(path):
        try:
            with closing(sqlite3.connect(backup, isolation_level=None)) as db:
                for setting in ("journal_mode=MEMORY", "secure_delete=ON", "foreign_keys=ON"):
                    db.execute(f"PRAGMA {setting}").fetchall()
                db.execute("DELETE FROM chats WHERE id = ?", (chat,))
                optimize(db)
        except sqlite3.Error:
            with suppress(OSError):
                backup.unlink()


def optimize(db: sqlite3.Connection) -> None:
    """Merges the full-text indexes of a database, where it has some: deleted words stay in them until then."""
    tables = db.execute("SELECT name FROM sqlite_master WHERE name IN ('message_words', 'title_words')").fetchall()
    for (table,) in tables:
        db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
