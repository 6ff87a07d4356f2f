"""What was said in the chats, and how it is found again."""

from __future__ import annotations

import json
from collections.abc import Iterable

from slipstream.app.chats.records import MESSAGE_COLUMNS, StoredMessage, message_of_row
from slipstream.app.chats.search import Hit, find
from slipstream.app.chats.shelf import Shelf
from slipstream.app.chats.tree import Tree


class Told(Shelf):
    """All chats, to be read."""

    def messages(self, chat: str) -> list[StoredMessage]:
        """The branch that is shown, oldest message first; refused messages are left out.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._read():
            return self._rows(self._tree(chat).shown())

    def all_messages(self, chat: str) -> list[tuple[StoredMessage, int]]:
        """The messages of all branches with when they were picked: of siblings, the greatest is shown; oldest first.

        Raises:
            UsageError: If there is no such chat.
        """
        self.get(chat)
        with self._read():
            rows = self._db.execute(
                f"SELECT {MESSAGE_COLUMNS}, picked FROM messages WHERE chat = ? AND status != 'failed' "
                "ORDER BY role != 'system', id",  # a system message may be younger than what follows it
                (chat,),
            )
            found: dict[int | None, tuple[StoredMessage, int]] = {}
            for row in rows:
                message = message_of_row(row[:-1])
                if message.parent is None or message.parent in found:  # not what followed a refused one
                    found[message.id] = (message, int(row[-1]))
            return list(found.values())

    def forks(self, chat: str) -> dict[int, list[int]]:
        """The shown messages that have siblings, each with all that stand in its place, oldest first."""
        with self._read():
            tree = self._tree(chat)
        places = {message: tree.siblings(message) for message in tree.shown()}
        return {message: siblings for message, siblings in places.items() if len(siblings) > 1}

    def search(self, words: str, limit: int = 50) -> list[Hit]:
        """The places where all words stand, in any branch of any chat; titles first, then the newest message.

        Args:
            words: Words or beginnings of words, in any order.
            limit: Most places.
        """
        with self._read():
            return find(self._db, words, limit)

    def prompts(self, limit: int = 100) -> list[str]:
        """What its owner typed in all chats, oldest first, to be recalled."""
        with self._read():
            rows = self._db.execute(
                "SELECT content FROM messages JOIN chats ON chats.id = messages.chat "
                "WHERE role = 'user' AND deleted IS NULL ORDER BY messages.id DESC LIMIT ?",
                (limit,),
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

    # --- inside ---------------------------------------------------------------------------------------------------

    def _rows(self, numbers: Iterable[int]) -> list[StoredMessage]:
        rows = self._db.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id IN (SELECT value FROM json_each(?)) "
            "ORDER BY role != 'system', id",
            (json.dumps(list(numbers)),),
        )
        return [message_of_row(row) for row in rows]

    def _tree(self, chat: str) -> Tree:
        return Tree(
            self._db.execute(
                "SELECT id, parent, picked FROM messages WHERE chat = ? AND status != 'failed' ORDER BY id", (chat,)
            )
        )

    def _end(self, chat: str) -> int | None:
        shown = self._tree(chat).shown()
        return shown[-1] if shown else None

    def _parent(self, message: int) -> int | None:
        row = self._db.execute("SELECT parent FROM messages WHERE id = ?", (message,)).fetchone()
        return row[0] if row else None
