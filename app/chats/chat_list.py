"""The list of chats: creates, finds, renames, pins and deletes them."""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from slipstream.app.chats.backups import erase, forget_in_backups
from slipstream.app.chats.database import Database
from slipstream.app.chats.deletion_hooks import chat_deleted, forget_chat, forget_orphans, forget_state
from slipstream.app.chats.images import ImageFolder, images_of
from slipstream.app.chats.records import NAME, TITLE_LIMIT, StoredChat, bounded, moment, new_id, storable, text_of
from slipstream.app.platform.safe_text import one_line
from slipstream.app.settings.values import all_settings
from slipstream.models.errors import UsageError

CHAT_COLUMNS = "id, title, created, updated, model, pinned"
_ALL = -1  # no limit, to SQLite
_MOST_LISTED = 5  # chats in a hint
UNDO_WITHIN = 60.0  # seconds in which a deleted chat can be restored; the next start erases it in any case


def chat_of_row(row: tuple[Any, ...]) -> StoredChat:
    name, title, created, updated, model, pinned = row
    own = {"created": moment(created), "updated": moment(updated)}
    return StoredChat(name, bounded(text_of(title)), model=bounded(text_of(model)), pinned=pinned == 1, **own)


class ChatList:
    """All chats, without their messages; methods raise ``UsageError`` for an unknown chat."""

    def __init__(
        self, database: Database, states: Path | None, heads: Path | None, index: Path | None, images: ImageFolder
    ) -> None:
        """The paths are of files derived from chats; see ``ChatStore``."""
        self._db, self._images = database, images
        self._states, self._heads, self._index = states, heads, index

    def create(self, title: str = "") -> StoredChat:
        """Creates a chat; without a title, the first message gives one."""
        now = time.time()
        with self._db.write():
            name = new_id()
            while self._db.execute("SELECT 1 FROM chats WHERE id = ?", (name,)).fetchone():
                name = new_id()
            chat = StoredChat(name, bounded(storable(title)), now, now, "")
            self.insert(chat)
        return chat

    def get(self, chat: str) -> StoredChat:
        """The chat of an id; raises ``UsageError`` if there is none, with a hint that lists the newest."""
        rows = self._db.rows(f"SELECT {CHAT_COLUMNS} FROM chats WHERE id = ? AND deleted IS NULL", storable(chat))
        if not rows:
            newest = "; ".join(map(id_and_title, self.list_chats(5)))
            hint = f"The newest are: {newest}. slipstream chats list shows all." if newest else "No chat is kept yet."
            raise UsageError(f'there is no chat "{one_line(chat)}".', hint)
        return chat_of_row(rows[0])

    def find(self, name: str) -> StoredChat:
        """Finds a chat by its id, its title, or the title's beginning; raises ``UsageError`` for none or several."""
        found = find_by_name(self.list_chats(), name)
        return require_one(found, name) if found else self.get(name)

    def open_or_create(self, name: str) -> StoredChat:
        """Finds a chat by its id or title, or creates one with that id and title; raises ``UsageError`` if it cannot.

        A title's beginning matches only if ``name`` is not a valid id; otherwise a new name might open another chat.
        """
        kept = self.list_chats()
        if not NAME.fullmatch(name):
            if found := find_by_name(kept, name):
                return require_one(found, name)
            raise UsageError(
                f"no title begins with {name[:80]!r}, and it cannot be the name of a chat.",
                "For a new chat, use up to 64 letters, digits, hyphens and underscores.",
            )
        titled = [chat for chat in kept if has_name(chat, name)]
        now = time.time()
        with self._db.write():
            known = self._db.execute("SELECT deleted FROM chats WHERE id = ?", (name,)).fetchone()
            if known is None and not titled:
                self.insert(StoredChat(name, name, now, now, ""))
        if known and known[0] is not None:
            raise UsageError(f'the chat "{name}" was deleted just now.', "Use another name, or try in a minute.")
        return require_one(titled, name) if titled and not known else self.get(name)

    def list_chats(self, limit: int = _ALL) -> list[StoredChat]:
        order = "ORDER BY pinned DESC, updated DESC, rowid DESC LIMIT ?"
        rows = self._db.rows(f"SELECT {CHAT_COLUMNS} FROM chats WHERE deleted IS NULL {order}", limit)
        return [chat_of_row(row) for row in rows if isinstance(row[0], str) and NAME.fullmatch(row[0])]

    def rename(self, chat: str, title: str) -> None:
        self.get(chat)
        if len(title) > TITLE_LIMIT:
            raise UsageError(f"the title has {len(title):,} characters.", f"Give one of at most {TITLE_LIMIT}.")
        self._db.change("UPDATE chats SET title = ? WHERE id = ?", storable(title), chat)

    def pin(self, chat: str, pinned: bool = True) -> None:
        self.get(chat)
        self._db.change("UPDATE chats SET pinned = ? WHERE id = ?", pinned, chat)

    def sampling(self, chat: str) -> dict[str, float | str]:
        """The chat's own fields of ``Sampling``, by name; without those that are not valid, empty for the defaults."""
        rows = self._db.rows("SELECT sampling FROM chats WHERE id = ?", chat)
        try:
            values = json.loads(text_of(rows[0][0])) if rows and rows[0][0] else {}
        except (ValueError, RecursionError):
            return {}
        known, found = all_settings(), dict[str, float | str]()
        for name, value in values.items() if isinstance(values, dict) else ():
            with suppress(UsageError, KeyError):
                found[name] = known[f"sampling.{name}"].checked(value)
        return found

    def keep_sampling(self, chat: str, values: Mapping[str, float | str]) -> None:
        self.get(chat)
        self._db.change("UPDATE chats SET sampling = ? WHERE id = ?", json.dumps(dict(values)) if values else "", chat)

    def state(self, chat: str) -> Path | None:
        """The file of a chat's KV cache; None if KV caches are not kept."""
        return self._states / f"{chat}.state" if self._states else None

    def delete(self, chat: str) -> None:
        """Removes a chat from the list and from the text indexes; ``restore`` undoes it until the chat is erased."""
        self.get(chat)
        self._db.change("UPDATE chats SET deleted = ? WHERE id = ?", time.time(), chat)
        forget_chat(self._index, chat)

    def restore(self, chat: str) -> bool:
        """Restores a deleted chat; False if it is already erased."""
        return self._db.change("UPDATE chats SET deleted = NULL WHERE id = ?", chat) > 0

    def erase_deleted(self, after: float = UNDO_WITHIN) -> None:
        """Erases chats that were deleted so many seconds ago, with all files derived from them."""
        for (chat,) in self._db.rows("SELECT id FROM chats WHERE deleted <= ?", time.time() - after):
            self._erase(text_of(chat))

    def _erase(self, chat: str) -> None:
        forget_state(self._states, chat)
        images = [sha256 for text in self._with_images(chat) for sha256 in images_of(text)]
        forget_in_backups(self._db.path, chat)
        with self._db.write(durable=True):  # late: after a kill, the next start repeats the steps above
            erase(self._db.connection, chat)
        self._images.forget(images, self._with_images)
        self.forget_text(chat)  # once more, in what another process has made meanwhile

    def forget_text(self, chat: str) -> None:
        """Removes what was made of a chat with a message that was deleted; the rest of the chat is indexed again."""
        forget_state(self._states, chat)
        forget_in_backups(self._db.path, chat)
        with self._db.exclusive():  # deleted text stays in the write-ahead log until it is emptied
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        chat_deleted(chat, self._heads, self._index)

    def sweep(self) -> None:
        """Erases deleted chats, unless another process may restore them, and kept KV caches without a chat."""
        try:
            self.erase_deleted(0.0 if self._db.alone else UNDO_WITHIN)
        finally:
            every = "SELECT id FROM chats"
            forget_orphans(self._states, lambda: {text_of(chat) for (chat,) in self._db.rows(every)}, self._db.alone)
            if self._db.alone:
                self._images.forget_orphans(self._with_images)

    def _with_images(self, chat: str = "") -> list[str]:
        query = "SELECT content FROM messages WHERE content LIKE '%](image:%' AND ? IN ('', chat)"
        return [text_of(content) for (content,) in self._db.rows(query, chat)]

    def insert(self, chat: StoredChat) -> None:
        row = (chat.id, bounded(chat.title), chat.created, chat.updated, bounded(chat.model), chat.pinned)
        self._db.execute(f"INSERT INTO chats ({CHAT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)


def has_name(chat: StoredChat, name: str) -> bool:
    return _normalized(name) in (_normalized(chat.id), _normalized(chat.title))


def find_by_name(chats: Sequence[StoredChat], name: str) -> list[StoredChat]:
    begin = _normalized(name)
    if not begin:
        return []
    found = [chat for chat in chats if chat.id == name] or [chat for chat in chats if has_name(chat, name)]
    return found or [chat for chat in chats if _normalized(chat.title).startswith(begin)]


def require_one(found: Sequence[StoredChat], name: str) -> StoredChat:
    """Returns the only chat found; raises ``UsageError`` for several, with a hint that lists them."""
    if len(found) == 1:
        return found[0]
    named = "; ".join(id_and_title(chat) for chat in found[:_MOST_LISTED])
    more = f"; and {len(found) - _MOST_LISTED:,} more" if len(found) > _MOST_LISTED else ""
    raise UsageError(
        f'"{one_line(name)}" matches {len(found):,} chats.', f"Use the id of one, the first word here: {named}{more}."
    )


def id_and_title(chat: StoredChat) -> str:
    return f"{chat.id} ({one_line(chat.title)})" if chat.title else chat.id


def _normalized(text: str) -> str:
    return one_line(text).casefold()
