"""Detects when another program deletes, replaces or empties the files of an open database.

SQLite keeps writing to a deleted file, and the data is lost when the process ends. A check before each use costs
a few microseconds. The files themselves are never opened here: closing one would drop SQLite's locks on it
(https://sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from slipstream.app.chats.rows import Row, Rows, select

LOCKS: Final = (".lock", ".writer")
_MOST_HELD: Final = 8


class Change(Enum):
    """A change of the files since the last look; the values are shown to the user."""

    NONE = "is as it was"
    LOCKS = "lost its lock files"
    LOG = "lost its log"
    CONTENT = "was overwritten"
    GONE = "was deleted or moved"
    REPLACED = "was replaced"


class OpenFiles:
    """The database, its log, the log's index and the lock files, as they were at the last look."""

    def __init__(self, path: Path, logged: bool) -> None:
        """Looks at the files for the first time.

        Args:
            logged: Whether there is a write-ahead log; without one every writer changes the database file itself.
        """
        self._path, self._logged = path, logged
        self._seen: dict[str, os.stat_result | None] = {}
        self.look()

    def look(self) -> None:
        """Records the files as they are now."""
        self._seen = {name: self._stat(name) for name in ("", "-wal", "-shm", *LOCKS)}

    def written(self) -> None:
        """Records the new sizes and times, and a new log, after a write of this process."""
        for name in ("", "-wal", "-shm"):
            before, now = self._seen[name], self._stat(name)
            if now and (before is None or _same(before, now)):  # otherwise ``change`` reports it
                self._seen[name] = now

    def change(self, locks: bool = True) -> Change:
        """The change of the files since the last look.

        Args:
            locks: Whether to check the lock files as well.
        """
        database, seen = self._stat(""), self._seen[""]
        if database is None or seen is None:
            return Change.GONE
        if not _same(seen, database):
            return Change.REPLACED
        log, index = self._seen["-wal"], self._seen["-shm"]
        log_now, index_now = self._stat("-wal"), self._stat("-shm")
        if _lost(log, log_now) or _lost(index, index_now):
            return Change.LOG
        if any(_cut(*sizes) for sizes in ((seen, database), (log, log_now), (index, index_now))):
            return Change.CONTENT
        if self._logged and database.st_mtime_ns != seen.st_mtime_ns:
            return Change.CONTENT
        return Change.LOCKS if locks and self.lost_locks() else Change.NONE

    def lost_locks(self) -> bool:
        """Whether a lock file was deleted or replaced: other processes would then lock another file."""
        return any(_lost(self._seen[name], self._stat(name)) for name in LOCKS)

    def drop_log(self) -> None:
        """Deletes the log and its index: SQLite would apply them to the new database of that name."""
        for end in ("-wal", "-shm"):
            before, now = self._seen[end], self._stat(end)
            if before and now and _same(before, now):
                self._name(end).unlink(missing_ok=True)

    def restore_index(self) -> None:
        """Restores the size of a truncated index of the log: SQLite maps it, and reading past its end is a SIGBUS."""
        before, now = self._seen["-shm"], self._stat("-shm")
        if before and now and _same(before, now) and now.st_size < before.st_size:
            with suppress(OSError):
                os.truncate(self._name("-shm"), before.st_size)

    def _name(self, end: str) -> Path:
        return self._path.with_name(self._path.name + end)

    def _stat(self, end: str) -> os.stat_result | None:
        try:
            return self._name(end).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # a failing file system, which SQLite will report
            return self._seen.get(end)


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _lost(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    return before is not None and (now is None or not _same(before, now))


def _cut(before: os.stat_result | None, now: os.stat_result | None) -> bool:
    return before is not None and now is not None and now.st_size < before.st_size


class HeldChats:
    """The rows of the chats in use, kept in memory in case the file loses its content.

    Triggers record the messages that a transaction changes, so that no writer needs to.
    """

    def __init__(self) -> None:
        self.rows = Rows()
        self._names: list[str] = []

    def watch(self, db: sqlite3.Connection) -> None:
        """Starts to record the messages that this connection changes."""
        db.execute("CREATE TEMP TABLE changed (id INTEGER PRIMARY KEY)")
        for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
            db.execute(
                f"CREATE TEMP TRIGGER changed_by_{event} AFTER {event} ON main.messages "
                f"BEGIN INSERT OR IGNORE INTO changed VALUES ({row}.id); END"
            )

    def hold(self, db: sqlite3.Connection, chat: str) -> None:
        """Keeps a chat in memory from now on; beyond ``_MOST_HELD``, drops the least recently used one."""
        new = chat not in self._names
        self._names = [*(name for name in self._names if name != chat), chat][-_MOST_HELD:]
        messages = self.rows.messages
        kept = {number: row for number, row in messages.items() if row["chat"] in self._names}
        self.rows = Rows(self._chats(db), kept if not new else kept | self._messages(db, chat))

    def update(self, db: sqlite3.Connection) -> None:
        """Copies the changes of a finished transaction."""
        changed = [number for (number,) in db.execute("SELECT id FROM temp.changed")]
        if changed:
            for number in changed:
                self.rows.messages.pop(number, None)
            found = select(db, "SELECT messages.* FROM temp.changed JOIN messages USING (id)")
            self.rows.messages |= {int(str(row["id"])): row for row in found if row["chat"] in self._names}
            db.execute("DELETE FROM temp.changed")
        self.rows.chats = self._chats(db)

    def reload(self, db: sqlite3.Connection) -> None:
        """Reads all held chats again."""
        self.rows = Rows(self._chats(db))
        for chat in self._names:
            self.rows.messages |= self._messages(db, chat)

    def _chats(self, db: sqlite3.Connection) -> dict[str, Row]:
        if not self._names:
            return {}
        found = select(db, f"SELECT * FROM chats WHERE id IN ({', '.join('?' * len(self._names))})", *self._names)
        return {str(row["id"]): row for row in found}

    def _messages(self, db: sqlite3.Connection, chat: str) -> dict[int, Row]:
        return {int(str(row["id"])): row for row in select(db, "SELECT * FROM messages WHERE chat = ?", chat)}
