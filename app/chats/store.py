"""The chats, in one SQLite file that survives a kill at any moment.

What a person typed is on disk before the engine hears of it. A reply is a row that grows while it streams; the next
start marks those of a killed process "interrupted". Writes that must survive a power cut are synchronous.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from slipstream.app.chats.database import Database
from slipstream.app.chats.records import (
    MESSAGE_COLUMNS,
    Figures,
    Status,
    StoredChat,
    StoredMessage,
    message_of_row,
    new_id,
    pack_tokens,
    storable,
    title_of,
)
from slipstream.app.drafters.marks import chat_deleted
from slipstream.app.safe_text import one_line
from slipstream.models.errors import UsageError

_CHAT = "id, title, created, updated, model"


class ChatStore(Database):
    """All chats; safe to call from any thread."""

    def __init__(
        self, path: Path, states: Path | None = None, heads: Path | None = None, index: Path | None = None
    ) -> None:
        """Opens or makes the database; replies that a killed process left streaming become interrupted.

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
        if self.alone:  # otherwise they may be the other process's, still growing
            with self._write():
                self._db.execute("UPDATE messages SET status = 'interrupted' WHERE status = 'streaming'")

    # --- chats ----------------------------------------------------------------------------------------------------

    def create(self, title: str = "") -> StoredChat:
        """Begins a chat; without a title the first message gives one."""
        now = time.time()
        with self._write():
            name = new_id()
            while self._db.execute("SELECT 1 FROM chats WHERE id = ?", (name,)).fetchone():
                name = new_id()
            self._db.execute(f"INSERT INTO chats ({_CHAT}) VALUES (?, ?, ?, ?, '')", (name, storable(title), now, now))
        return StoredChat(name, title, now, now, "")

    def get(self, chat: str) -> StoredChat:
        """Finds a chat.

        Raises:
            UsageError: If there is none of this name; the hint lists some that there are.
        """
        with self._read():
            row = self._db.execute(f"SELECT {_CHAT} FROM chats WHERE id = ?", (storable(chat),)).fetchone()
        if row is None:
            known = [f"{kept.id} ({one_line(kept.title)})" if kept.title else kept.id for kept in self.list_chats(5)]
            newest = "; ".join(known)
            hint = f"The newest are: {newest}. Ctrl-O in the chat lists all." if newest else "None are kept yet."
            raise UsageError(f'there is no chat "{one_line(chat)}".', hint)
        return StoredChat(*row)

    def open_or_create(self, chat: str) -> StoredChat:
        """Finds a chat by its name, or begins one of that name.

        Raises:
            UsageError: If the name is new and cannot be one.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", chat):
            raise UsageError(
                f"{chat[:80]!r} cannot be the name of a chat.", "Use up to 64 letters, digits, hyphens and underscores."
            )
        now = time.time()
        with self._write():
            self._db.execute(f"INSERT OR IGNORE INTO chats ({_CHAT}) VALUES (?, '', ?, ?, '')", (chat, now, now))
        return self.get(chat)

    def list_chats(self, limit: int = 200) -> list[StoredChat]:
        """The chats, the one with the newest message first."""
        with self._read():
            rows = self._db.execute(f"SELECT {_CHAT} FROM chats ORDER BY updated DESC, rowid DESC LIMIT ?", (limit,))
            return [StoredChat(*row) for row in rows]

    def rename(self, chat: str, title: str) -> None:
        """Gives a chat a title.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._write(durable=True):
            self._db.execute("UPDATE chats SET title = ? WHERE id = ?", (storable(title), chat))

    def state(self, chat: str) -> Path | None:
        """The file that keeps a chat's KV cache; None where states are not kept."""
        return self._states / f"{chat}.state" if self._states else None

    def delete(self, chat: str) -> None:
        """Deletes a chat, its messages, its kept state and its indexed text, and overwrites what they were in the file.

        Raises:
            UsageError: If there is no such chat.
            SlipstreamError: If it cannot be deleted; or if it is, but its traces in heads and indexes cannot be.
        """
        self.get(chat)
        with self._write(durable=True):
            self._db.execute("DELETE FROM chats WHERE id = ?", (chat,))
        if state := self.state(chat):
            state.unlink(missing_ok=True)
        with self._read():  # deleted text stays in the log until it is emptied
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        chat_deleted(chat, self._heads, self._index)

    # --- messages -------------------------------------------------------------------------------------------------

    def messages(self, chat: str) -> list[StoredMessage]:
        """The branch that was written last, oldest message first; refused messages are left out.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._read():
            rows = self._db.execute(
                f"""
                WITH RECURSIVE branch AS (
                    SELECT * FROM messages
                    WHERE id = (SELECT max(id) FROM messages WHERE chat = ? AND status != 'failed')
                    UNION ALL
                    SELECT messages.* FROM messages JOIN branch ON messages.id = branch.parent
                )
                SELECT {MESSAGE_COLUMNS} FROM branch ORDER BY id
                """,
                (chat,),
            )
            return [message_of_row(row) for row in rows]

    def prompts(self, limit: int = 100) -> list[str]:
        """What its owner typed in all chats, oldest first, to be recalled."""
        with self._read():
            rows = self._db.execute(
                "SELECT content FROM messages WHERE role = 'user' ORDER BY id DESC LIMIT ?", (limit,)
            )
            return [str(row[0]) for row in rows][::-1]

    def refused(self, chat: str) -> str:
        """What its owner typed last in a chat, if the engine refused it; else empty."""
        with self._read():
            row = self._db.execute(
                "SELECT content, status FROM messages WHERE chat = ? AND role = 'user' ORDER BY id DESC LIMIT 1",
                (chat,),
            ).fetchone()
        return str(row[0]) if row and row[1] == "failed" else ""

    def add_user(self, chat: str, text: str) -> StoredMessage:
        """Keeps what its owner typed, on disk when this returns.

        Raises:
            UsageError: If there is no such chat.
        """
        kept = self.get(chat)
        with self._write(durable=True):
            message = self._add(chat, self._last(chat), "user", text, "done")
            title = kept.title or title_of(text)
            self._db.execute("UPDATE chats SET updated = ?, title = ? WHERE id = ?", (message.created, title, chat))
        return message

    def set_system(self, chat: str, text: str) -> None:
        """Gives a chat its system message, or changes it.

        Raises:
            UsageError: If there is no such chat, or it began without one.
        """
        first = next(iter(self.messages(chat)), None)
        if first and first.role != "system":
            raise UsageError(
                f'chat "{chat}" began without a system message.', "Leave --system out, or begin another chat with it."
            )
        with self._write(durable=True):
            if first:
                self._db.execute("UPDATE messages SET content = ? WHERE id = ?", (storable(text), first.id))
            else:
                self._add(chat, None, "system", text, "done")

    def begin_reply(
        self, chat: str, *, model: str, fingerprint: str, drafter: str, seed: int, parent: int | None = None
    ) -> StoredMessage:
        """Begins a reply, empty and streaming.

        Args:
            chat: The chat.
            model: Name of the model that writes it.
            fingerprint: The model's fingerprint.
            drafter: Who drafts.
            seed: Seed of the reply.
            parent: The message that is answered; the newest if None. An earlier one makes a new branch.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._write():
            at = self._last(chat) if parent is None else parent
            message = self._add(chat, at, "assistant", "", "streaming", fingerprint, drafter, str(seed))
            self._db.execute(
                "UPDATE chats SET updated = ?, model = ? WHERE id = ?", (message.created, storable(model), chat)
            )
        return message

    def append_reply(self, message: int, text: str, tokens: list[int]) -> None:
        """Adds to a streaming reply."""
        with self._write():
            self._db.execute(
                "UPDATE messages SET content = content || ?, tokens = CAST(tokens || ? AS BLOB), status = 'streaming' "
                "WHERE id = ?",
                (storable(text), pack_tokens(tokens), message),
            )

    def finish_reply(
        self,
        message: int,
        status: Status = "done",
        *,
        text: str | None = None,
        tokens: list[int] | None = None,
        reason: str = "",
        figures: Figures | None = None,
    ) -> None:
        """Ends a reply; on disk when this returns.

        Args:
            message: The reply's number.
            status: "done", "interrupted" or "failed".
            text: The whole reply; None keeps what was appended.
            tokens: Its tokens; None keeps what was appended.
            reason: Why it ended.
            figures: How it went.
        """
        with self._write(durable=True):
            self._db.execute(
                "UPDATE messages SET status = ?, reason = ?, speed = ?, content = coalesce(?, content), "
                "tokens = coalesce(?, tokens) WHERE id = ?",
                (
                    status,
                    storable(reason),
                    figures.packed() if figures else "",
                    None if text is None else storable(text),
                    None if tokens is None else pack_tokens(tokens),
                    message,
                ),
            )

    def withdraw(self, message: int) -> None:
        """Takes a message that the engine refused out of its chat; it stays in the file as "failed"."""
        with self._write(durable=True):
            self._db.execute("UPDATE messages SET status = 'failed' WHERE id = ?", (message,))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _add(
        self,
        chat: str,
        parent: int | None,
        role: str,
        text: str,
        status: Status,
        model: str = "",
        drafter: str = "",
        seed: str = "",
    ) -> StoredMessage:
        row = (chat, parent, role, storable(text), b"", model, status, drafter, seed, "", "", time.time())
        columns = MESSAGE_COLUMNS.removeprefix("id, ")
        number = self._db.execute(
            f"INSERT INTO messages ({columns}) VALUES ({', '.join('?' * len(row))})", row
        ).lastrowid
        return message_of_row((number, *row))

    def _last(self, chat: str) -> int | None:
        row = self._db.execute("SELECT max(id) FROM messages WHERE chat = ? AND status != 'failed'", (chat,)).fetchone()
        return None if row[0] is None else int(row[0])
