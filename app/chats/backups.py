"""Backs up the chats at every clean end, and restores a damaged file from its readable rows and the newest backup.

Every new file is complete before it gets its name: a kill at any moment leaves the old file or the new one.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from slipstream.app.chats.records import NAME, readable
from slipstream.app.chats.schema import migrate
from slipstream.app.platform.paths import worded
from slipstream.app.platform.safe_text import one_line, plural

VERSIONS: Final = 3  # number of backups of earlier versions
DAYS: Final = 7  # number of daily backups
DAY: Final = 86400.0
KEPT_ASIDE: Final = 30 * DAY
"""Seconds after which a file that was set aside is deleted: it may contain chats that the user deleted later."""
SIDE_FILES: Final = ("-wal", "-shm", "-journal")
_TITLE: Final = 48  # characters of the title of a chat whose own row is lost
_AT_ONCE: Final = 512  # rows read at once from a damaged file
_MOST_ROWS: Final = 1 << 24  # a damaged file may name any number
_NEEDED: Final = {"chats": {"id"}, "messages": {"id", "chat", "role", "created", "parent", "content"}}
_PAGE: Final = 4096
_FIRST_BYTES: Final = (100, _PAGE)  # bytes that a copy of a damaged file gets from a new one, until rows are found


def backups(path: Path) -> list[Path]:
    return of_versions(path) + of_days(path)


def of_versions(path: Path) -> list[Path]:
    """The backups before migrations, oldest version first."""
    found = path.parent.glob(f"{path.stem}-version-*{path.suffix}")
    return sorted(found, key=lambda backup: (len(backup.name), backup))


def of_days(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.stem}-day-*{path.suffix}"))


def age(path: Path) -> float:
    """Seconds since the newest daily backup; infinity without one."""
    newest = of_days(path)[-1:]
    return abs(time.time() - newest[0].stat().st_mtime) if newest else float("inf")


def keep_version(path: Path, version: int) -> None:
    """Backs up a database, which is locked against writers, before a migration; raises as ``write_copy`` does."""
    with _opened(path) as db:
        write_copy(db, path.with_name(f"{path.stem}-version-{version}{path.suffix}"))
    for old in of_versions(path)[:-VERSIONS]:
        old.unlink(missing_ok=True)


def keep_day(db: sqlite3.Connection, path: Path) -> None:
    """Replaces the backup of today; raises as ``write_copy`` does.

    An older backup is kept if it has a chat that no newer one has: such a chat was lost, while a chat that the user
    deletes is erased from all backups.
    """
    write_copy(db, path.with_name(f"{path.stem}-day-{time.strftime('%Y-%m-%d')}{path.suffix}"))
    days = of_days(path)
    if len(days) > DAYS:
        newer: set[str] = set().union(*map(_chats, days[-DAYS:]))
        for old in reversed(days[:-DAYS]):
            chats = _chats(old)
            if chats <= newer:
                old.unlink(missing_ok=True)
            newer |= chats


def write_copy(db: sqlite3.Connection, target: Path) -> None:
    """Writes all that a connection sees to a file that only its owner can read; a damaged database replaces nothing.

    Raises ``SlipstreamError`` or ``sqlite3.Error`` if the database is damaged, or the copy cannot be written.
    """
    with _new_file(target) as part, closing(sqlite3.connect(part)) as copy:
        db.backup(copy)  # copies pages, since VACUUM INTO may renumber the rows
        copy.execute("PRAGMA journal_mode=DELETE").fetchall()  # in WAL mode the copy would have a log, too
        check(copy)


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Yields an empty file beside the target, which then replaces it; leaves no file on failure."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with worded(target):
            os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600))
        yield part
        with worded(target):
            os.replace(part, target)
    finally:
        with suppress(OSError):  # the folder itself may be gone
            part.unlink(missing_ok=True)


def drop_leftovers(path: Path) -> None:
    """Deletes unfinished copies of a killed process, and files that were set aside a month ago."""
    with worded(path):
        for part in path.parent.glob(f".{path.stem}-*{path.suffix}.*"):
            part.unlink(missing_ok=True)
    with suppress(OSError):
        for aside in path.parent.glob(f"{path.stem}-damaged-*"):
            if aside.is_file() and time.time() - aside.stat().st_ctime > KEPT_ASIDE:
                aside.unlink()


def forget_in_backups(path: Path, chat: str) -> None:
    """Erases a deleted chat from all backups; a backup that cannot be changed is deleted."""
    for backup in backups(path):
        try:
            with closing(sqlite3.connect(backup, isolation_level=None)) as db:
                if db.execute("SELECT 1 FROM chats WHERE id = ?", (chat,)).fetchone():
                    for setting in ("journal_mode=MEMORY", "secure_delete=ON", "foreign_keys=ON"):
                        db.execute(f"PRAGMA {setting}").fetchall()
                    erase(db, chat)
        except (sqlite3.Error, UnicodeDecodeError):
            with suppress(OSError):
                backup.unlink()


def erase(db: sqlite3.Connection, chat: str) -> None:
    """Deletes a chat with its messages and words; nothing of them is left in the file if ``secure_delete`` is on."""
    # without parents, deleting a message deletes no other: SQLite refuses chains of 1,000
    db.execute("UPDATE messages SET parent = NULL WHERE chat = ?", (chat,))
    db.execute("DELETE FROM chats WHERE id = ?", (chat,))
    indexes = "SELECT name FROM sqlite_master WHERE name IN ('message_words', 'title_words')"
    for (table,) in db.execute(indexes).fetchall():
        db.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")  # only that removes deleted words


def check(db: sqlite3.Connection) -> None:
    if (verdict := str(db.execute("PRAGMA quick_check(1)").fetchone()[0])) != "ok":
        raise sqlite3.DatabaseError(f"database corruption: {verdict}")


def _chats(backup: Path) -> set[str]:
    try:
        with _opened(backup) as db:
            return {str(chat) for (chat,) in db.execute("SELECT id FROM chats")}
    except (sqlite3.Error, UnicodeDecodeError):
        return set()


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        db.text_factory = readable
        yield db


def restore(path: Path, why: str) -> str:
    """Sets a damaged database aside, and writes a new one with all rows that it or the newest backup still has.

    ``why`` says what is wrong with it, for example "was empty". Returns a report for the user.
    """
    added, backup = 0, None
    with _new_file(ready(path)) as part, closing(sqlite3.connect(part, isolation_level=None)) as db:
        migrate(db)
        db.execute("BEGIN")
        with worded(path), _readable_copy(path) as old:
            _add(db, old)
        for backup in sorted(backups(path), key=lambda each: each.stat().st_mtime, reverse=True):
            with _past_damage(), _opened(backup) as old:
                old.execute("SELECT 1 FROM messages").fetchone()
                added = _add(db, old)
                break
        _join(db)
        messages, chats = (db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("messages", "chats"))
        db.execute("COMMIT")
    aside = set_aside(path)
    finish(path)
    with suppress(OSError):
        marked(path).unlink(missing_ok=True)
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(backup.stat().st_mtime)) if backup and added else ""
    old_ones = f", {added:,} of them from a backup of {day}" if day else ""
    counts = f"{plural(messages, 'message')} in {plural(chats, 'chat')} were rescued{old_ones}"
    left = f" The file as it was is kept for a month: {aside.name}." if aside else ""
    return f"{path.name} {why}: {counts if chats else 'a new one was begun'}.{left}"


def finish(path: Path) -> None:
    """Gives the new file its name after the damaged one was set aside, also if a kill came between the two."""
    with worded(path):
        if not path.exists() and ready(path).exists():
            os.replace(ready(path), path)


def set_aside(path: Path) -> Path | None:
    """Renames the files of a database; ``drop_leftovers`` deletes them after a month. None if there were none."""
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    aside, number, found = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}"), 2, False
    while aside.exists():
        aside = path.with_name(f"{path.stem}-damaged-{stamp}-{number}{path.suffix}")
        number += 1
    for side in (*SIDE_FILES, ""):  # the file itself last: until then restoring can be repeated
        with worded(path), suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + side), aside.with_name(aside.name + side))
            found = True
    return aside if found else None


def marked(path: Path) -> Path:
    """The file that marks a database in use as damaged, so that the next start restores it."""
    return path.with_name(path.name + ".damaged")


def ready(path: Path) -> Path:
    """The name of a new file until the damaged one is set aside."""
    return path.with_name(f"{path.stem}-rescued{path.suffix}")


@contextmanager
def _readable_copy(path: Path) -> Iterator[sqlite3.Connection]:
    copy = path.with_name(f".{path.stem}-read{path.suffix}.{os.getpid()}")
    try:
        with closing(_opened_copy(path, copy)) as db:
            yield db
    finally:
        for side in ("", *SIDE_FILES):
            copy.with_name(copy.name + side).unlink(missing_ok=True)


def _opened_copy(path: Path, copy: Path) -> sqlite3.Connection:
    """Opens a copy of a damaged database that begins like a new one.

    The header has known values. If the rest of the first page, the schema, is lost too: the tables of a file that no
    migration changed begin at the same pages.
    """
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    first = bytearray(db.serialize()[:_PAGE])
    first[18:20] = b"\2\2"  # the file may have a write-ahead log
    first[28:32] = bytes(4)  # as many pages as the file has
    for length in _FIRST_BYTES:
        db.close()
        copy.touch(0o600)
        for side in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError, IsADirectoryError):
                _copy_blocks(path.with_name(path.name + side), copy.with_name(copy.name + side))
        with copy.open("r+b") as file:
            file.write(first[:length])
        db = sqlite3.connect(copy, isolation_level=None)
        db.text_factory = readable
        with _past_damage():
            db.execute("PRAGMA writable_schema=ON")  # reads past faults of the schema, and files cut short
            db.execute("SELECT * FROM chats, messages LIMIT 0")
            if any(next(_rows(db, table), None) for table in ("chats", "messages")):
                break
    return db


@contextmanager
def _past_damage() -> Iterator[None]:
    """Passes over what is damaged, but not over a disk that fails now: nothing may be given up for that."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL):
            raise


def _copy_blocks(source: Path, target: Path) -> None:
    """Copies a file; blocks that the disk cannot read become zeros."""
    with (
        source.open("rb", buffering=0) as file,
        open(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as copy,
    ):
        for at in range(0, os.fstat(file.fileno()).st_size, _PAGE):
            block = bytes(_PAGE)
            with suppress(OSError):
                file.seek(at)
                block = file.read(_PAGE)
            copy.write(block)


def _rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """The rows that can be read: a range of rows in which one cannot is halved until that one is alone."""
    last = _last(db, table)
    ranges = [(at, min(at + _AT_ONCE - 1, last)) for at in range(1, last + 1, _AT_ONCE)][::-1]
    while ranges:
        low, high = ranges.pop()
        rows = None
        with _past_damage():
            found = db.execute(f"SELECT * FROM {table} WHERE rowid BETWEEN ? AND ?", (low, high))
            rows = found.fetchall()
        if rows is not None:
            names = [column[0] for column in found.description]
            yield from (dict(zip(names, row, strict=True)) for row in rows)
        elif low < high:
            middle = (low + high) // 2
            ranges += [(middle + 1, high), (low, middle)]


def _last(db: sqlite3.Connection, table: str) -> int:
    for query in (f"SELECT max(rowid) FROM {table}", f"SELECT max(seq) FROM sqlite_sequence WHERE name = '{table}'"):
        with _past_damage(), suppress(TypeError, ValueError):
            return min(int(db.execute(query).fetchone()[0] or 0), _MOST_ROWS)
    pages = int(db.execute("PRAGMA page_count").fetchone()[0])
    return min(256 * pages, 1 << 16)


def _add(db: sqlite3.Connection, old: sqlite3.Connection) -> int:
    for row in _shared_rows(db, old, "chats"):
        if isinstance(row["id"], str) and NAME.fullmatch(row["id"]):
            _insert(db, "chats", row)
    added = 0
    for row in _shared_rows(db, old, "messages"):
        query = "SELECT chat, role, created, parent, content FROM messages WHERE id = ?"
        now = db.execute(query, (row["id"],)).fetchone()
        if now is None or _is_lost(row, *now):
            db.execute("DELETE FROM messages WHERE id = ?", (row["id"],))
            added += _insert(db, "messages", row)
    return added


def _shared_rows(db: sqlite3.Connection, old: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """The readable rows with the columns that the new database has; those without the first version's are left out."""
    known = {str(name) for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}
    for row in _rows(old, table):
        if row.keys() >= _NEEDED[table]:
            yield {name: value for name, value in row.items() if name in known}


def _is_lost(old: dict[str, Any], chat: str, role: str, created: float, parent: int | None, content: str) -> bool:
    """Whether a message is garbled. Only system messages change later, and replies only grow."""
    if (old["chat"], old["role"], old["created"]) != (chat, role, created):
        return True
    moved = old["parent"] is not None and parent is not None and parent != old["parent"]
    return moved or (role != "system" and not content.startswith(str(old["content"])))


def _insert(db: sqlite3.Connection, table: str, row: dict[str, Any]) -> int:
    places = ", ".join("?" * len(row))
    return db.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({places})", [*row.values()]).rowcount


def _join(db: sqlite3.Connection) -> None:
    """Gives messages without a chat a new one, and those without their parent the message before them."""
    orphans = db.execute(
        "SELECT chat, content, created FROM messages WHERE id IN "
        "(SELECT min(id) FROM messages WHERE chat NOT IN (SELECT id FROM chats) GROUP BY chat)"
    ).fetchall()
    for chat, content, created in orphans:
        if NAME.fullmatch(str(chat)):
            title = one_line(str(content)[: 4 * _TITLE])[:_TITLE]
            _insert(db, "chats", {"id": chat, "title": title, "created": created, "updated": created, "model": ""})
    db.execute("DELETE FROM messages WHERE chat NOT IN (SELECT id FROM chats)")
    db.execute("""
        UPDATE messages SET parent = (
            SELECT max(id) FROM messages AS before WHERE before.chat = messages.chat AND before.id < messages.id)
        WHERE parent IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM messages AS above WHERE above.id = messages.parent AND above.chat = messages.chat
            AND (above.id < messages.id OR above.role = 'system'))
    """)  # a system message may be younger than the message that follows it
