"""Read access to the chats for the engine's process, which starts without what writes them."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.app.chats.records import readable, text_of, unpack_tokens
from slipstream.app.chats.schema import MIGRATIONS, storage_error
from slipstream.models.errors import SlipstreamError

_FINISHED: Final = "role = 'assistant' AND status IN ('done', 'interrupted')"


@dataclass(frozen=True, slots=True)
class StoredReply:
    id: int  # its number; later replies have greater numbers
    question: str  # the message that it answers; empty without one
    content: str
    tokens: list[int]  # its token ids, valid only for the model of this fingerprint
    model: str  # fingerprint of the model that wrote it


class ChatReader:
    """Reads chats for the engine: never changes the file, and opens it only during a call; a missing one is empty."""

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
