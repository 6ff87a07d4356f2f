"""The list of chats: begin, find, rename, pin and delete them."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from slipstream.app.chats.backups import forget_in_backups, optimize
from slipstream.app.chats.called import called, is_called, only, shown
from slipstream.app.chats.database import Database
from slipstream.app.chats.kept_states import forget_orphans, forget_state
from slipstream.app.chats.records import NAME, StoredChat, new_id, storable
from slipstream.app.drafters.indexed import forget_chat
from slipstream.app.drafters.marks import chat_deleted
from slipstream.app.safe_text import one_line
from slipstream.models.errors import SlipstreamError, UsageError

CHAT_COLUMNS = "id, title, created, updated, model, pinned"
_ALL = -1  # no limit, to SQLite
UNDO_WITHIN = 60.0
"""Seconds in which a deleted chat can be brought back; the next start erases it in any case."""


def chat_of_row(row: tuple[str, str, float, float, str, int]) -> StoredChat:
    """Reads a row of ``CHAT_COLUMNS``."""
    name, title, created, updated, model, pinned = row
    return StoredChat(name, title, created, updated, model, bool(pinned))


class Shelf(Database):
    """All chats, without what was said in them."""

    def __init__(
        self, path: Path, states: Path | None = None, heads: Path | None = None, index: Path | None = None
    ) -> None:
        """Opens or makes the database, and erases the chats that were deleted before.

        Args:
            path: The database.
            states: Folder of the kept KV caches, which go with their chats.
            heads: Folder of trained heads; those that were trained on a chat are marked when it is deleted.
            index: Folder of the indexes of text, which forget a chat when it is deleted.

        Raises:
            SlipstreamError: If the place cannot be written to, or a newer slipstream made the file.
        """
        super().__init__(path)
        self._states, self._heads, self._index = states, heads, index
        try:
            self.erase_deleted(0.0 if self.alone else UNDO_WITHIN)  # another process may still bring its own back
        except SlipstreamError as error:  # tried again at the next start; the other chats can be read
            self.notice = self.notice or f"{error.title} {error.hint}"
        forget_orphans(self._states, self._names, self.alone)

    def close(self) -> None:
        """Erases the chats that were deleted, for nobody can bring them back now, and closes the file."""
        with suppress(SlipstreamError):  # the next start tries again; or it is closed already
            self.erase_deleted(0.0 if self.alone else UNDO_WITHIN)
            forget_orphans(self._states, self._names, self.alone)
        super().close()

    def create(self, title: str = "") -> StoredChat:
        """Begins a chat; without a title the first message gives one."""
        now = time.time()
        with self._write():
            name = new_id()
            while self._db.execute("SELECT 1 FROM chats WHERE id = ?", (name,)).fetchone():
                name = new_id()
            chat = StoredChat(name, storable(title), now, now, "")
            self._insert(chat)
        return chat

    def get(self, chat: str) -> StoredChat:
        """Finds a chat.

        Raises:
            UsageError: If there is none of this name; the hint lists some that there are.
        """
        with self._read():
            row = self._db.execute(
                f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ? AND deleted IS NULL", (storable(chat),)
            ).fetchone()
        if row is None:
            newest = "; ".join(map(shown, self.list_chats(5)))
            hint = f"The newest are: {newest}. slipstream chats list shows all." if newest else "None are kept yet."
            raise UsageError(f'there is no chat "{one_line(chat)}".', hint)
        return chat_of_row(row)

    def find(self, name: str) -> StoredChat:
        """Finds a chat by its id, its title, or the beginning of the title; capitals do not count in titles.

        Raises:
            UsageError: If there is none, or several that it may be; the hint lists them.
        """
        found = called(self.list_chats(_ALL), name)
        return only(found, name) if found else self.get(name)

    def open_or_create(self, name: str) -> StoredChat:
        """Finds a chat by its id or title, or begins one of that name, which is its title too.

        The beginning of a title will do only where the name cannot be a new chat's, which would go on with another.

        Raises:
            UsageError: If the name is new and cannot be one, is that of a chat that was deleted just now, or may mean
                several chats.
        """
        kept = self.list_chats(_ALL)
        if not NAME.fullmatch(name):
            if found := called(kept, name):
                return only(found, name)
            raise UsageError(
                f"no title begins with {name[:80]!r}, and it cannot be the name of a chat.",
                "For a new chat, use up to 64 letters, digits, hyphens and underscores.",
            )
        titled = [chat for chat in kept if is_called(chat, name)]
        now = time.time()
        with self._write():
            known = self._db.execute("SELECT deleted FROM chats WHERE id = ?", (name,)).fetchone()
            if known is None and not titled:
                self._insert(StoredChat(name, name, now, now, ""))
        if known and known[0] is not None:
            raise UsageError(f'the chat "{name}" was deleted just now.', "Take another name, or try in a minute.")
        return only(titled, name) if titled and not known else self.get(name)

    def list_chats(self, limit: int = 200) -> list[StoredChat]:
        """The chats: pinned ones first, then the one with the newest message."""
        with self._read():
            rows = self._db.execute(
                f"SELECT {CHAT_COLUMNS} FROM chats WHERE deleted IS NULL "
                "ORDER BY pinned DESC, updated DESC, rowid DESC LIMIT ?",
                (limit,),
            )
            return [chat_of_row(row) for row in rows]

    def rename(self, chat: str, title: str) -> None:
        """Gives a chat a title.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._write(durable=True):
            self._db.execute("UPDATE chats SET title = ? WHERE id = ?", (storable(title), chat))

    def pin(self, chat: str, pinned: bool = True) -> None:
        """Puts a chat on top of the list, or back among the others.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._write(durable=True):
            self._db.execute("UPDATE chats SET pinned = ? WHERE id = ?", (pinned, chat))

    def sampling(self, chat: str) -> dict[str, float]:
        """How the tokens of a chat are drawn, by the names of ``requests.Sampling``; empty for the usual."""
        with self._read():
            row = self._db.execute("SELECT sampling FROM chats WHERE id = ?", (chat,)).fetchone()
        return dict(json.loads(row[0])) if row and row[0] else {}

    def keep_sampling(self, chat: str, values: dict[str, float]) -> None:
        """Keeps how the tokens of a chat are drawn, see ``sampling``.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._write(durable=True):
            self._db.execute("UPDATE chats SET sampling = ? WHERE id = ?", (json.dumps(values) if values else "", chat))

    def state(self, chat: str) -> Path | None:
        """The file that keeps a chat's KV cache; None where states are not kept."""
        return self._states / f"{chat}.state" if self._states else None

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete(self, chat: str) -> None:
        """Takes a chat out of the list and the indexes of text; ``restore`` brings it back until it is erased.

        Raises:
            UsageError: If there is no such chat.
            SlipstreamError: If it cannot be deleted; or if it is, but its traces in indexes cannot be.
        """
        self.get(chat)
        with self._write(durable=True):
            self._db.execute("UPDATE chats SET deleted = ? WHERE id = ?", (time.time(), chat))
        forget_chat(self._index, chat)

    def restore(self, chat: str) -> bool:
        """Brings a deleted chat back, as it was; False if it is erased already."""
        with self._write(durable=True):
            changed = self._db.execute("UPDATE chats SET deleted = NULL WHERE id = ?", (chat,))
        return changed.rowcount > 0

    def erase_deleted(self, after: float = UNDO_WITHIN) -> None:
        """Erases deleted chats with all that was kept of them, and overwrites what they were in the file.

        Args:
            after: Seconds since a chat was deleted for it to be erased.

        Raises:
            SlipstreamError: If it cannot be done; or if it is, but traces in heads and indexes cannot be erased.
        """
        before = time.time() - after
        with self._read():
            rows = self._db.execute("SELECT id FROM chats WHERE deleted <= ?", (before,)).fetchall()
        for (chat,) in rows:
            self._erase(str(chat))

    def _erase(self, chat: str) -> None:
        forget_state(self._states, chat)
        forget_in_backups(self.path, chat)
        with self._write(durable=True):  # last, so that the next start goes on where a kill cut it short
            self._db.execute("DELETE FROM chats WHERE id = ?", (chat,))
            optimize(self._db)
        with self._alone():  # deleted text stays in the log until it is emptied
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        chat_deleted(chat, self._heads, self._index)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _names(self) -> set[str]:
        with self._read():
            return {str(chat) for (chat,) in self._db.execute("SELECT id FROM chats")}

    def _insert(self, chat: StoredChat) -> sqlite3.Cursor:
        row = (chat.id, chat.title, chat.created, chat.updated, chat.model, chat.pinned)
        return self._db.execute(f"INSERT INTO chats ({CHAT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)
