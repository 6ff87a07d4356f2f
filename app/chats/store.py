"""The chats, in one SQLite file that survives a kill at any moment.

A user's message is on disk before the engine reads it. A reply is a row that grows while it streams; the next start
marks replies of a killed process "interrupted". Writes that must survive a power cut are synchronous.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.app.chats.chat_list import ChatList
from slipstream.app.chats.database import Database, storage_error
from slipstream.app.chats.images import ImageFolder
from slipstream.app.chats.messages import Messages
from slipstream.app.chats.records import readable, text_of, unpack_tokens
from slipstream.app.chats.schema import MIGRATIONS
from slipstream.models.errors import SlipstreamError

_FINISHED: Final = "role = 'assistant' AND status IN ('done', 'interrupted')"


class ChatStore:
    """All chats and their messages, safe to call from any thread; combines ``ChatList`` and ``Messages``."""

    def __init__(
        self,
        path: Path,
        states: Path | None = None,  # folder of kept KV caches, which are deleted with their chats
        heads: Path | None = None,  # folder of trained heads; deleting a chat marks those trained on it
        index: Path | None = None,  # folder of the text indexes, from which deleted chats are removed
        images: Path | None = None,  # folder of the images in chats; None for one next to the database
    ) -> None:
        """Opens or creates the database, and erases the chats that were deleted before."""
        self.database = database = Database(path)
        self.path = path
        self.listen, self.alone = database.listen, database.alone
        self.images = ImageFolder(images or path.parent / "images")
        self._chats = chats = ChatList(database, states, heads, index, self.images)
        self.list_chats, self.get, self.find = chats.list_chats, chats.get, chats.find
        self.create, self.open_or_create = chats.create, chats.open_or_create
        self.rename, self.pin = chats.rename, chats.pin
        self.sampling, self.keep_sampling, self.state = chats.sampling, chats.keep_sampling, chats.state
        self.delete, self.restore, self.erase_deleted = chats.delete, chats.restore, chats.erase_deleted
        talk = Messages(database, chats)
        self.messages, self.all_messages, self.forks = talk.messages, talk.all_messages, talk.forks
        self.search, self.prompts, self.refused = talk.search, talk.prompts, talk.refused
        self.add_user, self.set_system, self.add_chats = talk.add_user, talk.set_system, talk.add_chats
        self.add_summary, self.remove_summary = talk.add_summary, talk.remove_summary
        self.begin_reply, self.go_on, self.append_reply = talk.begin_reply, talk.go_on, talk.append_reply
        self.finish_reply, self.withdraw, self.show = talk.finish_reply, talk.withdraw, talk.show
        with ExitStack() as opened:
            opened.callback(database.close)
            try:
                chats.sweep()
            except SlipstreamError as error:  # tried again at the next start; the other chats can be read
                database.notice = database.notice or f"{error.title} {error.hint}"
            if self.alone:  # otherwise another process may still be writing them
                talk.interrupt()
            opened.pop_all()

    @property
    def notice(self) -> str:
        return self.database.notice

    def close(self) -> None:
        """Erases deleted chats, which can then no longer be restored, and closes the file."""
        with suppress(SlipstreamError):  # the next start tries again, or the file is already closed
            self._chats.sweep()
        self.database.close()


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A finished reply."""

    id: int  # its number; later replies have greater numbers
    question: str  # the message that it answers; empty without one
    content: str
    tokens: list[int]  # its token ids, valid only for the model of this fingerprint
    model: str  # fingerprint of the model that wrote it


class ChatReader:
    """Read access for the engine's process; never creates or changes the file, and opens it only during a call.

    A missing file counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def newest(self) -> dict[str, int]:
        """Maps every chat to the number of its newest finished reply, or 0; newest first."""
        query = f"""
            SELECT chats.id, coalesce(max(messages.id), 0) FROM chats
            LEFT JOIN messages ON messages.chat = chats.id AND {_FINISHED}
            WHERE deleted IS NULL GROUP BY chats.id ORDER BY 2 DESC
        """
        with self.open() as db:
            return {str(chat): int(newest) for chat, newest in db.execute(query)} if db else {}

    def has(self, chats: Iterable[str]) -> bool:
        query = "SELECT 1 FROM chats WHERE id = ? AND deleted IS NULL"
        with self.open() as db:
            return all(db is not None and db.execute(query, (chat,)).fetchone() for chat in chats)

    def replies(self, chat: str, after: int, limit: int = -1) -> list[StoredReply]:
        """The finished replies of all branches of a chat ``after`` a number, up to the first that is streaming."""
        query = f"""
            SELECT id, (SELECT content FROM messages AS asked WHERE asked.id = messages.parent AND asked.role = 'user'),
                content, tokens, model
            FROM messages WHERE chat = ? AND {_FINISHED} AND id > ? AND id < coalesce(
                (SELECT min(id) FROM messages AS open WHERE open.status = 'streaming' AND open.chat = ?), id + 1)
            ORDER BY id LIMIT ?
        """
        with self.open() as db:
            rows = db.execute(query, (chat, after, chat, limit)).fetchall() if db else []
        return [
            StoredReply(id, text_of(asked), text_of(content), unpack_tokens(raw), text_of(model))
            for id, asked, content, raw, model in rows
        ]

    @contextmanager
    def open(self) -> Iterator[sqlite3.Connection | None]:
        if not self._path.exists():
            yield None
            return
        try:
            with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=rw", timeout=5, uri=True)) as db:
                db.text_factory = readable
                db.execute("PRAGMA query_only=ON")  # mode=ro would leave the log behind
                if db.execute("PRAGMA user_version").fetchone() != (len(MIGRATIONS),):
                    raise SlipstreamError(
                        f"the chats in {self._path} are of another version of slipstream.",
                        "Start the chat once: it brings older ones up to date.",
                    )
                yield db
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the message may quote the damaged file
            raise storage_error(self._path, error) from error
