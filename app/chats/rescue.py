"""Rescues a damaged database: keeps the readable rows, and adds lost rows from the newest backup.

The new file is complete before it gets the old one's name, and the old one is renamed, not changed. So after a kill at
any moment, the next start either repeats the rescue or finds it done.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.app.chats.backups import backups
from slipstream.app.chats.rows import Row, Rows, is_other, rows_in, write_rows
from slipstream.app.chats.salvage import Value
from slipstream.app.chats.salvage import rows as rows_of_pages
from slipstream.app.chats.schema import migrate
from slipstream.app.platform.paths import unwritable, worded

SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_MARK: Final = ".damaged"
KEPT_ASIDE: Final = 30 * 86400.0
"""Seconds after which a file that was set aside is deleted: it may contain chats that the user deleted later."""
_KINDS: Final[dict[str, type | tuple[type, ...]]] = {"TEXT": str, "BLOB": bytes, "REAL": (int, float), "INTEGER": int}
_FEWEST: Final = {"chats": 5, "messages": 13}
"""Number of columns in the first version; rows that were never rewritten still have this number."""


def rescue(path: Path, why: str, known: Rows | None = None, whole: bool = False, others: Rows | None = None) -> str:
    """Replaces a damaged database by a sound one.

    Args:
        path: The database; no other process has it open.
        why: What is wrong, for example "was empty".
        known: Rows that are known from memory.
        whole: Whether ``known`` are all rows; otherwise the file and the newest backup are read too.
        others: The sound content of a file that replaced the database; it is added.

    Returns:
        A report for the user.

    Raises:
        SlipstreamError: If the new file cannot be written.
        sqlite3.Error: If SQLite cannot write it.
    """
    part, ready = path.with_name(f".{path.name}.rescued-{os.getpid()}"), _ready(path)
    rows, backup, added = Rows(), None, set[int]()
    try:
        for leftover in path.parent.glob(f".{path.name}.rescued-*"):
            leftover.unlink()
        if not whole:
            rows = _salvaged(path)
            backup, added = _add_backup(path, rows)
        if known:
            rows.update(known)
        write_new(part, rows)
        if others:
            with closing(sqlite3.connect(part, isolation_level=None)) as db:
                write_rows(db, others)
        os.replace(part, ready)
        aside = _set_aside(path, sides=not whole)
        if others and aside:
            aside.unlink()
        finish(path)
        _mark(path).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)
    if others:
        return f"{path.name} {why}: the chats of the new file are used, and this one with them."
    old = f", {len(added & rows.messages.keys()):,} of them from a backup of {_day(backup)}" if backup else ""
    messages, chats = len(rows.messages), len(rows.chats)
    counts = f"{messages:,} message{'s' * (messages != 1)} in {chats:,} chat{'s' * (chats != 1)}"
    saved = f"{counts} were {'written to a new file' if whole else f'rescued{old}'}"
    left = f" The file as it was is kept for a month: {aside.name}." if aside else ""
    return f"{path.name} {why}: {saved if rows.chats else 'a new one was begun'}.{left}"


def write_new(path: Path, rows: Rows) -> None:
    """Writes rows to a new database that only its owner can read; removes rows that the tables refuse from ``rows``.

    Raises:
        SlipstreamError: If the file cannot be written.
        sqlite3.Error: If SQLite cannot write it.
    """
    with worded(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, path)
        write_rows(db, rows)


def mark(path: Path) -> None:
    """Marks a database in use as damaged; the next start rescues it."""
    with contextlib.suppress(OSError):
        os.close(os.open(_mark(path), os.O_CREAT | os.O_WRONLY, 0o600))


def is_marked(path: Path) -> bool:
    return _mark(path).exists()


def finish(path: Path) -> None:
    """Completes a rescue that was killed after the damaged file was set aside.

    Raises:
        OSError: If the folder cannot be written to.
    """
    if not path.exists() and _ready(path).exists():
        os.replace(_ready(path), path)


def drop_old(path: Path) -> None:
    """Deletes files that were set aside a month ago."""
    with contextlib.suppress(OSError):
        for aside in path.parent.glob(f"{path.stem}-damaged-*"):
            if aside.is_file() and time.time() - aside.stat().st_ctime > KEPT_ASIDE:
                aside.unlink()


def _mark(path: Path) -> Path:
    return path.with_name(path.name + _MARK)


def _ready(path: Path) -> Path:
    return path.with_name(f"{path.stem}-rescued{path.suffix}")


def aside_name(path: Path) -> Path:
    """A free name for a file that is set aside; ``drop_old`` deletes it after a month."""
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    number = 2
    while aside.exists():
        aside = path.with_name(f"{path.stem}-damaged-{stamp}-{number}{path.suffix}")
        number += 1
    return aside


def _set_aside(path: Path, sides: bool = True) -> Path | None:
    """Renames the files of a database; None if there were none."""
    aside, found = aside_name(path), False
    for side in (*SIDE_FILES, ""):  # the file itself last: until then the rescue can be repeated
        place = path.with_name(path.name + side)
        with contextlib.suppress(FileNotFoundError):
            if side and not sides:
                place.unlink()
            else:
                os.replace(place, aside.with_name(aside.name + side))
                found = True
    return aside if found else None


def _day(backup: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(backup.stat().st_mtime))


def _salvaged(path: Path) -> Rows:
    """All rows of the file and its log that look like chats or messages."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, path)
        chats, messages = (
            [(str(row[1]), str(row[2])) for row in db.execute(f"PRAGMA table_info({table})")] for table in _FEWEST
        )
    found = Rows()
    for trusted in (True, False):  # second pass: rows after a damaged frame of the log, which have no valid checksum
        for number, values in rows_of_pages(path, trusted):
            if _fits(values, messages, "messages") and values[0] is None:
                row = dict(zip((name for name, _ in messages), (number, *values[1:]), strict=False))
                known = found.messages.get(number)
                if known is None or (not trusted and len(str(row["content"])) > len(str(known["content"]))):
                    found.messages[number] = row
            elif _fits(values, chats, "chats"):
                row = dict(zip((name for name, _ in chats), values, strict=False))
                if trusted or str(row["id"]) not in found.chats:
                    found.chats[str(row["id"])] = row
    return found


def _fits(values: list[Value], columns: list[tuple[str, str]], table: str) -> bool:
    """Whether a row may belong to a table; only a number or a time may be null."""
    return _FEWEST[table] <= len(values) <= len(columns) and all(
        isinstance(value, _KINDS[kind]) or (value is None and kind in ("INTEGER", "REAL"))
        for value, (_, kind) in zip(values, columns, strict=False)
    )


def _add_backup(path: Path, rows: Rows) -> tuple[Path | None, set[int]]:
    """Adds lost and garbled rows from the newest readable backup.

    Returns:
        The backup, or None if it added nothing, and the numbers of the added messages.
    """
    for backup in sorted(backups(path), key=lambda backup: backup.stat().st_mtime, reverse=True):
        try:
            old = rows_in(backup)
        except (sqlite3.Error, UnicodeDecodeError):
            continue
        missing = {number: row for number, row in old.messages.items() if _is_lost(row, rows.messages.get(number))}
        rows.messages |= missing
        rows.chats = old.chats | rows.chats
        return (backup if missing else None), set(missing)
    return None, set()


def _is_lost(old: Row, now: Row | None) -> bool:
    """Whether a message is missing or garbled. Only system messages change later, and replies only grow."""
    if now is None or is_other(old, now):
        return True
    moved = old["parent"] is not None and now["parent"] is not None and now["parent"] != old["parent"]
    return moved or (old["role"] != "system" and not str(now["content"]).startswith(str(old["content"])))
