"""The chats, in one SQLite file that survives a kill at any moment.

What a person typed is on disk before the engine hears of it. A reply is a row that grows while it streams; the next
start marks those of a killed process "interrupted". Writes that must survive a power cut are synchronous.

A chat is a tree of messages: what is edited or asked again stands beside what was there, and nothing is overwritten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from slipstream.app.chats.records import (
    MESSAGE_COLUMNS,
    Figures,
    Status,
    StoredChat,
    StoredMessage,
    message_of_row,
    new_id,
    pack_tokens,
    row_of_message,
    storable,
)
from slipstream.app.chats.titles import title_of
from slipstream.app.chats.told import Told

_COLUMNS = MESSAGE_COLUMNS.removeprefix("id, ") + ", picked"
_INSERT = f"INSERT INTO messages ({_COLUMNS}) VALUES ({', '.join('?' * (_COLUMNS.count(',') + 1))})"


class ChatStore(Told):
    """All chats; safe to call from any thread."""

    def __init__(
        self, path: Path, states: Path | None = None, heads: Path | None = None, index: Path | None = None
    ) -> None:
        """Opens or makes the database, see ``Shelf``; replies that a killed process left streaming become interrupted.

        Raises:
            SlipstreamError: If the place cannot be written to, or a newer slipstream made the file.
        """
        super().__init__(path, states, heads, index)
        if self.alone:  # otherwise they may be the other process's, still growing
            with self._write():
                self._db.execute("UPDATE messages SET status = 'interrupted' WHERE status = 'streaming'")

    # --- write ----------------------------------------------------------------------------------------------------

    def add_user(self, chat: str, text: str, beside: int | None = None) -> StoredMessage:
        """Keeps what its owner typed, on disk when this returns.

        Args:
            chat: The chat.
            text: The message.
            beside: A message in whose place this one stands from now on, as another branch; None puts it at the end.

        Raises:
            UsageError: If there is no such chat.
        """
        kept = self.get(chat)
        with self._write(durable=True):
            message = self._add(chat, self._end(chat) if beside is None else self._parent(beside), "user", text, "done")
            title = kept.title or title_of(text)
            self._db.execute("UPDATE chats SET updated = ?, title = ? WHERE id = ?", (message.created, title, chat))
        return message

    def show(self, message: int) -> None:
        """Shows a message and the branch it stands in."""
        with self._write(durable=True):
            row = self._db.execute("SELECT chat FROM messages WHERE id = ?", (message,)).fetchone()
            if row:
                self._db.execute(
                    "UPDATE messages SET picked = ? WHERE id IN (SELECT value FROM json_each(?))",
                    (self._next_pick(row[0]), json.dumps(self._tree(row[0]).above(message))),
                )

    def set_system(self, chat: str, text: str) -> None:
        """Gives a chat its system message, changes it, or takes it away where the text is empty; of all branches.

        Raises:
            UsageError: If there is no such chat.
        """
        first = next(iter(self.messages(chat)), None)
        kept = first if first and first.role == "system" else None
        with self._write(durable=True):
            if kept and text:
                self._db.execute("UPDATE messages SET content = ? WHERE id = ?", (storable(text), kept.id))
            elif kept:
                self._db.execute("UPDATE messages SET parent = NULL WHERE parent = ?", (kept.id,))
                self._db.execute("DELETE FROM messages WHERE id = ?", (kept.id,))
            elif text:
                new = self._add(chat, None, "system", text, "done")
                self._db.execute(
                    "UPDATE messages SET parent = ? WHERE chat = ? AND parent IS NULL AND id != ?",
                    (new.id, chat, new.id),
                )

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
            parent: The message that is answered; the last that is shown if None. One with a reply gets another branch.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._write():
            at = self._end(chat) if parent is None else parent
            message = self._add(chat, at, "assistant", "", "streaming", fingerprint, drafter, str(seed))
            self._db.execute(
                "UPDATE chats SET updated = ?, model = ? WHERE id = ?", (message.created, storable(model), chat)
            )
        return message

    def go_on(self, message: StoredMessage, *, model: str, fingerprint: str, drafter: str) -> StoredMessage:
        """Lets a reply that ended too early go on: it streams again, behind what it has.

        Args:
            message: The reply.
            model: Name of the model that writes it.
            fingerprint: The model's fingerprint; the tokens of another are of no use and leave.
            drafter: Who drafts.

        Returns:
            The reply as it is now.
        """
        with self._write():
            self._db.execute(
                "UPDATE messages SET status = 'streaming', reason = '', model = ?, drafter = ?, "
                "tokens = CASE model WHEN ? THEN tokens ELSE x'' END WHERE id = ?",
                (fingerprint, drafter, fingerprint, message.id),
            )
            self._db.execute(
                "UPDATE chats SET updated = ?, model = ? WHERE id = ?", (time.time(), storable(model), message.chat)
            )
            return self._rows([message.id])[0]

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

    def add_chat(self, chat: StoredChat, messages: Iterable[tuple[StoredMessage, int]]) -> StoredChat:
        """Takes over a chat from elsewhere, whole or not at all.

        Args:
            chat: The chat; it gets another name where its own is taken.
            messages: As ``all_messages`` gives them, parents first.

        Returns:
            The chat as it is kept.
        """
        numbers: dict[int, int | None] = {}
        with self._write(durable=True):
            while self._db.execute("SELECT 1 FROM chats WHERE id = ?", (chat.id,)).fetchone():
                chat = replace(chat, id=new_id())
            self._insert(chat)
            for message, picked in messages:
                parent = None if message.parent is None else numbers[message.parent]
                row = (chat.id, parent, *row_of_message(message)[3:], picked)
                numbers[message.id] = self._db.execute(_INSERT, row).lastrowid
        return chat

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
        number = self._db.execute(_INSERT, (*row, self._next_pick(chat))).lastrowid
        return message_of_row((number, *row))

    def _next_pick(self, chat: str) -> int:
        row = self._db.execute("SELECT coalesce(max(picked), 0) + 1 FROM messages WHERE chat = ?", (chat,)).fetchone()
        return int(row[0])
