"""Saves what can be saved of damaged chats: rows that are readable still, then what the newest backup has besides.

The new file is whole before it takes the old one's place, and the old one stays as it is under another name: a kill at
any moment leaves either a file to be rescued or one that was.
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
from slipstream.app.chats.records import NAME, Figures, readable
from slipstream.app.chats.salvage import Value, rows
from slipstream.app.chats.schema import migrate
from slipstream.app.chats.titles import title_of
from slipstream.app.paths import unwritable

SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_MARK: Final = ".damaged"
KEPT_ASIDE: Final = 30 * 86400.0
"""Seconds after which a file that was set aside is deleted: it holds chats that were deleted since."""
_KINDS: Final[dict[str, type | tuple[type, ...]]] = {"TEXT": str, "BLOB": bytes, "REAL": (int, float), "INTEGER": int}
_FEWEST: Final = {"chats": 5, "messages": 13}
"""Columns of the first version; rows that were not written since have no more."""
_Row = dict[str, Value]


def rescue(path: Path, why: str) -> str:
    """Puts a sound database in a damaged one's place.

    Args:
        path: The database; no process has it open.
        why: What is wrong, as "is empty".

    Returns:
        What became of it, for the user.

    Raises:
        SlipstreamError: If the place cannot be written to.
        sqlite3.Error: If the new file cannot be written.
    """
    part, ready = path.with_name(f".{path.name}.rescued-{os.getpid()}"), _ready(path)
    try:
        for leftover in path.parent.glob(f".{path.name}.rescued-*"):
            leftover.unlink()
        os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600))
        with closing(sqlite3.connect(part, isolation_level=None)) as db:
            migrate(db, part)
            columns = {table: _columns(db, table) for table in _FEWEST}
            chats, messages = _salvaged(path, columns)
            backup, added = _add_backup(path, chats, messages)
            _insert(db, chats, messages)
        os.replace(part, ready)
        aside = _set_aside(path)
        finish(path)
        _mark(path).unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        part.unlink(missing_ok=True)
    old = f", {len(added & messages.keys()):,} of them from a backup of {_day(backup)}" if backup else ""
    saved = f"{len(messages):,} messages in {len(chats):,} chats were rescued{old}" if chats else "a new one was begun"
    return f"{path.name} {why}: {saved}. The file as it was is kept for a month: {aside.name}."


def mark(path: Path) -> None:
    """Notes that a database was found damaged amid its use, for the next start to rescue it."""
    with contextlib.suppress(OSError):
        os.close(os.open(_mark(path), os.O_CREAT | os.O_WRONLY, 0o600))


def is_marked(path: Path) -> bool:
    """Whether a database was found damaged amid its use."""
    return _mark(path).exists()


def finish(path: Path) -> None:
    """Ends a rescue that a kill cut short when the damaged file was away already.

    Raises:
        OSError: If the place cannot be written to.
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


def _set_aside(path: Path) -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    number = 2
    while aside.exists():
        aside = path.with_name(f"{path.stem}-damaged-{stamp}-{number}{path.suffix}")
        number += 1
    for side in (*SIDE_FILES, ""):  # the file itself last: until then the rescue can begin again
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + side), aside.with_name(aside.name + side))
    return aside


def _day(backup: Path) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(backup.stat().st_mtime))


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    return [(str(row[1]), str(row[2])) for row in db.execute(f"PRAGMA table_info({table})")]


def _salvaged(path: Path, columns: dict[str, list[tuple[str, str]]]) -> tuple[dict[str, _Row], dict[int, _Row]]:
    """Chats by name and messages by number."""
    chats: dict[str, _Row] = {}
    messages: dict[int, _Row] = {}
    for trusted in (True, False):  # behind a damaged frame of the log there may be more, but nothing vouches for it
        for number, values in rows(path, trusted):
            if _fits(values, columns["messages"], "messages") and values[0] is None:
                row = dict(zip((name for name, _ in columns["messages"]), (number, *values[1:]), strict=False))
                known = messages.get(number)
                if known is None or (not trusted and len(str(row["content"])) > len(str(known["content"]))):
                    messages[number] = row
            elif _fits(values, columns["chats"], "chats"):
                row = dict(zip((name for name, _ in columns["chats"]), values, strict=False))
                if trusted or str(row["id"]) not in chats:
                    chats[str(row["id"])] = row
    return chats, messages


def _fits(values: list[Value], columns: list[tuple[str, str]], table: str) -> bool:
    """Whether a row could be one of a table's; null stands for a number or a time only."""
    return _FEWEST[table] <= len(values) <= len(columns) and all(
        isinstance(value, _KINDS[kind]) or (value is None and kind in ("INTEGER", "REAL"))
        for value, (_, kind) in zip(values, columns, strict=False)
    )


def _add_backup(path: Path, chats: dict[str, _Row], messages: dict[int, _Row]) -> tuple[Path | None, set[int]]:
    """Adds what the newest readable backup has and the file has not, or not as it was.

    Returns:
        The backup, if it had something, and the numbers of what it had.
    """
    for backup in sorted(backups(path), key=lambda backup: backup.stat().st_mtime, reverse=True):
        try:
            with closing(sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True)) as db:
                db.row_factory, db.text_factory = sqlite3.Row, readable
                old_chats = [dict(row) for row in db.execute("SELECT * FROM chats")]
                old_messages = [dict(row) for row in db.execute("SELECT * FROM messages")]
        except (sqlite3.Error, UnicodeDecodeError):
            continue
        missing = {row["id"]: row for row in old_messages if _lost(row, messages.get(row["id"]))}
        messages |= missing
        for row in old_chats:
            chats.setdefault(row["id"], row)
        return (backup if missing else None), set(missing)
    return None, set()


def _lost(old: _Row, now: _Row | None) -> bool:
    """Whether a message is gone or garbled: what was said stays, but for system messages and replies that go on."""
    if now is None or any(now[name] != old[name] for name in ("chat", "role", "created")):
        return True
    moved = old["parent"] is not None and now["parent"] is not None and now["parent"] != old["parent"]
    return moved or (old["role"] != "system" and not str(now["content"]).startswith(str(old["content"])))


def _insert(db: sqlite3.Connection, chats: dict[str, _Row], messages: dict[int, _Row]) -> None:
    """Writes what was found; what the tables do not take is left out of both collections."""
    db.execute("BEGIN IMMEDIATE")
    for name, row in list(chats.items()):
        if not NAME.fullmatch(name) or not _inserted(db, "chats", row):
            del chats[name]
    last: dict[str, int] = {}
    for number in sorted(messages, key=lambda number: (messages[number]["role"] != "system", number)):
        row = messages[number]
        chat, parent = str(row["chat"]), messages.get(row["parent"]) if isinstance(row["parent"], int) else None
        first = parent is not None and parent["role"] == "system" and parent["parent"] is None
        if row["parent"] is not None and not (parent and parent["chat"] == chat and (first or parent["id"] < number)):  # type: ignore[operator]
            row["parent"] = last.get(chat)  # what it answered is lost: it follows what was said before
        _readable(row)
        if (chat not in chats and not _begun(db, chats, row)) or not _inserted(db, "messages", row):
            del messages[number]
            continue
        last[chat] = number
    db.execute("COMMIT")


def _readable(row: _Row) -> None:
    """Empties figures and a seed that the program could not read."""
    try:
        Figures.unpacked(str(row["speed"]))
        int(str(row["seed"] or 0))
    except (ValueError, TypeError, AttributeError):
        row["speed"] = row["seed"] = ""


def _begun(db: sqlite3.Connection, chats: dict[str, _Row], first: _Row) -> bool:
    """Begins a chat of which only messages are left."""
    name = str(first["chat"])
    title = title_of(str(first["content"])) if NAME.fullmatch(name) else ""
    row: _Row = {"id": name, "title": title, "created": first["created"], "updated": first["created"], "model": ""}
    if not NAME.fullmatch(name) or not _inserted(db, "chats", row):
        return False
    chats[name] = row
    return True


def _inserted(db: sqlite3.Connection, table: str, row: _Row) -> bool:
    places = ", ".join("?" * len(row))
    try:
        db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
    except sqlite3.IntegrityError:
        return False
    return True
