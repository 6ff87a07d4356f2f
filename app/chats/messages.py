"""Reads, searches, adds and changes the messages of all chats.

A chat is a tree of messages: an edited message or a second reply is a sibling of the first, and nothing is overwritten.
"""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slipstream.app.chats.chat_list import ChatList
from slipstream.app.chats.database import Database
from slipstream.app.chats.images import MARK, image_label
from slipstream.app.chats.records import (
    MESSAGE_COLUMNS,
    SUMMARY,
    Figures,
    Status,
    StoredChat,
    StoredMessage,
    Tree,
    message_of_row,
    new_id,
    pack_tokens,
    pick_of,
    row_of_message,
    storable,
    text_of,
)
from slipstream.app.chats.search import Hit, find
from slipstream.models.errors import UsageError

_COLUMNS = MESSAGE_COLUMNS.removeprefix("id, ") + ", picked"
_INSERT = f"INSERT INTO messages ({_COLUMNS}) VALUES ({', '.join('?' * (_COLUMNS.count(',') + 1))})"
_BELOW = """
    WITH RECURSIVE below(id) AS (VALUES (?) UNION SELECT messages.id FROM messages JOIN below ON parent = below.id)
    SELECT id FROM below
"""
LENGTH = 48  # maximum characters of a title
LEAST_LENGTH = 12  # minimum characters of a clause that becomes a title
_READ = 20_000  # characters of a message that are searched for its title; few, since the screen waits
_FENCE = re.compile(r"(?:```|~~~).*?(?:```|~~~|\Z)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ADDRESS = re.compile(r"https?://(?:www\.)?([^\s/?#]+)\S*")
_LINE_MARKS = re.compile(r"^\s*(?:#{1,6}\s|>+\s?|[-*+]\s|\d+[.)]\s)", re.MULTILINE)
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|`+|~~)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_GREETING = re.compile(
    r"^(?:(?:hi|hello|hey|hallo|good (?:morning|afternoon|evening)|dear \w+|ok(?:ay)?|so|well|please|thanks|thank you)"
    r"(?:\s+(?:there|all|everyone|again|you))?(?:\s*[,.!:;–-]+\s*|\s+|$))+",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please |kindly |maybe )?(?:help me (?:to )?|tell me |show me )?"
    r"|i(?: would|'d) like (?:you )?to (?:know )?|i (?:want|need) (?:you )?to |i have a question(?: about)?[:,. ]*"
    r"|help me (?:to )?|tell me |please )(?=\w)",
    re.IGNORECASE,
)
_LOOSE_END = re.compile(
    r"(?:\s+(?:a|an|and|as|at|by|for|from|how|in|is|it|its|my|of|on|or|that|the|to|which|with|your))+$"
)
_CLAUSE = re.compile(r"[.!?…](?=\s|$)|[:;](?=\s)|\s[–—-]\s|\n(?!\s*[a-z])|[。！？]")


@dataclass(frozen=True, slots=True)
class RemovedMessages:
    chat: str
    message: int  # the message that was named
    rows: list[tuple[Any, ...]]  # it, and what went with it; parents come first
    moved: list[int]  # the messages that followed it


class Messages:
    """The messages of all chats; methods raise ``UsageError`` for an unknown chat."""

    def __init__(self, database: Database, chats: ChatList) -> None:
        self._db, self._chats = database, chats

    def messages(self, chat: str) -> list[StoredMessage]:
        """The messages of the shown branch, oldest first, without refused ones."""
        self._chats.get(chat)
        with self._db.read():
            return self._rows(self._tree(chat).shown())

    def all_messages(self, chat: str) -> list[tuple[StoredMessage, int]]:
        """The messages of all branches, oldest first, each with its pick; of siblings, the greatest pick is shown."""
        self._chats.get(chat)
        with self._db.read():
            rows = self._db.execute(
                f"SELECT {MESSAGE_COLUMNS}, picked FROM messages WHERE chat = ? AND status != 'failed' "
                "ORDER BY role != 'system', id",  # a system message may be younger than its children
                (chat,),
            )
            found: dict[int | None, tuple[StoredMessage, int]] = {}
            for row in rows:
                message = message_of_row(row[:-1])
                if message.parent is None or message.parent in found:  # otherwise its parent was refused
                    found[message.id] = (message, pick_of(row[-1]))
            return list(found.values())

    def forks(self, chat: str) -> dict[int, list[int]]:
        """The shown messages that have siblings, each with all its siblings, oldest first."""
        with self._db.read():
            tree = self._tree(chat)
        places = {message: tree.siblings(message) for message in tree.shown()}
        return {message: siblings for message, siblings in places.items() if len(siblings) > 1}

    def search(self, words: str, limit: int = 50) -> list[Hit]:
        """The titles, then messages with all these beginnings of words, in any branch of any chat; newest first."""
        with self._db.read():
            return find(self._db.connection, words, limit)

    def prompts(self, limit: int = 100) -> list[str]:
        rows = self._db.rows(
            "SELECT content FROM messages JOIN chats ON chats.id = messages.chat "
            "WHERE role = 'user' AND reason NOT LIKE ? AND deleted IS NULL ORDER BY messages.id DESC LIMIT ?",
            f"{SUMMARY}%",
            limit,
        )
        return [text_of(content) for (content,) in reversed(rows)]

    def refused(self, chat: str) -> str:
        query = "SELECT content, status FROM messages WHERE chat = ? AND role = 'user' AND reason NOT LIKE ? "
        rows = self._db.rows(f"{query} ORDER BY id DESC LIMIT 1", chat, f"{SUMMARY}%")
        return text_of(rows[0][0]) if rows and rows[0][1] == "failed" else ""

    def interrupt(self) -> None:
        with self._db.write():
            self._db.execute("UPDATE messages SET status = 'interrupted' WHERE status = 'streaming'")

    def add_user(self, chat: str, text: str, replaces: int | None = None) -> StoredMessage:
        """Adds a message of the user, as a sibling of the one that it ``replaces``; it is on disk when this returns."""
        kept = self._chats.get(chat)
        with self._db.write(durable=True):
            parent = self._end(chat) if replaces is None else self._parent(replaces)
            message = self._add(chat, parent, "user", text, "done")
            title = kept.title or title_of(text)
            self._db.execute("UPDATE chats SET updated = ?, title = ? WHERE id = ?", (message.created, title, chat))
        return message

    def add_summary(self, chat: str, parent: int, text: str, kept: int, fingerprint: str) -> StoredMessage:
        """Adds a summary of the chat, which does not replace the ``kept`` messages directly before it."""
        with self._db.write(durable=True):
            message = self._add(chat, parent, "user", text, "done", model=fingerprint, reason=f"{SUMMARY} {kept}")
            self._db.execute("UPDATE chats SET updated = ? WHERE id = ?", (message.created, chat))
        return message

    def remove_summary(self, message: int) -> None:
        """Removes a summary; its parent becomes the parent of its children."""
        with self._db.write(durable=True):
            parent = self._parent(message)
            self._db.execute("UPDATE messages SET parent = ? WHERE parent = ?", (parent, message))
            self._db.execute("DELETE FROM messages WHERE id = ?", (message,))

    def remove(self, message: int) -> RemovedMessages:
        """Removes a message; what follows it stays. Of several versions, it and what follows it go."""
        with self._db.write(durable=True):
            row = self._db.execute("SELECT chat FROM messages WHERE id = ?", (message,)).fetchone()
            if row is None:
                raise UsageError("this message is not there any more.")
            chat = text_of(row[0])
            versions = len(self._tree(chat).siblings(message)) > 1
            parent = self._parent(message)
            moved = [number for (number,) in self._db.execute("SELECT id FROM messages WHERE parent = ?", (message,))]
            if versions:
                below = self._db.execute(_BELOW, (message,))
                gone, moved = [number for (number,) in below], []
            else:
                gone = [message]
                self._db.execute("UPDATE messages SET parent = ? WHERE parent = ?", (parent, message))
            numbers = json.dumps(gone)
            query = f"SELECT id, {_COLUMNS} FROM messages WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
            rows = self._db.execute(query, (numbers,)).fetchall()
            for statement in ("UPDATE messages SET parent = NULL", "DELETE FROM messages"):  # as in ``erase``
                self._db.execute(f"{statement} WHERE id IN (SELECT value FROM json_each(?))", (numbers,))
            self._db.execute("INSERT INTO message_words (message_words) VALUES ('optimize')")
        self._chats.forget_text(chat)
        return RemovedMessages(chat, message, rows, moved)

    def put_back(self, removed: RemovedMessages) -> None:
        with self._db.write(durable=True):
            for row in removed.rows:
                self._db.execute(_INSERT.replace("(", "(id, ", 1).replace("VALUES (", "VALUES (?, "), row)
            for number in removed.moved:
                self._db.execute("UPDATE messages SET parent = ? WHERE id = ?", (removed.message, number))

    def show(self, message: int) -> None:
        with self._db.write(durable=True):
            row = self._db.execute("SELECT chat FROM messages WHERE id = ?", (message,)).fetchone()
            if row:
                self._db.execute(
                    "UPDATE messages SET picked = ? WHERE id IN (SELECT value FROM json_each(?))",
                    (self._next_pick(row[0]), json.dumps(self._tree(row[0]).above(message))),
                )

    def set_system(self, chat: str, text: str) -> None:
        first = next(iter(self.messages(chat)), None)
        kept = first if first and first.role == "system" else None
        with self._db.write(durable=True):
            if kept and text:
                self._db.execute("UPDATE messages SET content = ? WHERE id = ?", (storable(text), kept.id))
            elif kept:
                self._db.execute("UPDATE messages SET parent = NULL WHERE parent = ?", (kept.id,))
                self._db.execute("DELETE FROM messages WHERE id = ?", (kept.id,))
            elif text:
                new = self._add(chat, None, "system", text, "done")
                query = "UPDATE messages SET parent = ? WHERE chat = ? AND parent IS NULL AND id != ?"
                self._db.execute(query, (new.id, chat, new.id))

    def begin_reply(
        self, chat: str, *, model: str, fingerprint: str, drafter: str, seed: int, parent: int | None = None
    ) -> StoredMessage:
        """Adds an empty reply of status "streaming"; a second one to the same parent is a new branch."""
        self._chats.get(chat)
        with self._db.write():
            at = self._end(chat) if parent is None else parent
            own = {"model": fingerprint, "drafter": drafter, "seed": str(seed), "writer": model}
            message = self._add(chat, at, "assistant", "", "streaming", **own)
            self._replied(chat, model, message.created)
        return message

    def go_on(self, message: StoredMessage, *, model: str, fingerprint: str, drafter: str) -> StoredMessage:
        """Continues a reply that ended early, with status "streaming"; tokens of another model are dropped."""
        with self._db.write():
            self._db.execute(
                "UPDATE messages SET status = 'streaming', reason = '', model = ?, writer = ?, drafter = ?, "
                "tokens = CASE model WHEN ? THEN tokens ELSE x'' END WHERE id = ?",
                (fingerprint, storable(model), drafter, fingerprint, message.id),
            )
            self._replied(message.chat, model, time.time())
            return self._rows([message.id])[0]

    def append_reply(self, message: int, text: str, tokens: list[int]) -> None:
        with self._db.write():
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
        """Ends a reply; it is on disk when this returns. Without a text or tokens, those appended so far stay."""
        self._db.change(
            "UPDATE messages SET status = ?, reason = ?, speed = ?, content = coalesce(?, content), "
            "tokens = coalesce(?, tokens) WHERE id = ?",
            *(status, storable(reason), figures.packed() if figures else ""),
            *(None if text is None else storable(text), None if tokens is None else pack_tokens(tokens)),
            message,
        )

    def withdraw(self, message: int) -> None:
        """Marks a refused message as failed, outside the chat; a chat without others loses the title that it gave."""
        with self._db.write(durable=True):
            self._db.execute("UPDATE messages SET status = 'failed' WHERE id = ?", (message,))
            row = self._db.execute("SELECT chat, content FROM messages WHERE id = ?", (message,)).fetchone()
            if row:
                self._db.execute(
                    "UPDATE chats SET title = '' WHERE id = ? AND title = ? AND NOT EXISTS"
                    " (SELECT 1 FROM messages WHERE chat = chats.id AND role = 'user' AND status != 'failed')",
                    (row[0], title_of(text_of(row[1]))),
                )

    def add_chats(self, chats: Iterable[tuple[StoredChat, Sequence[tuple[StoredMessage, int]]]]) -> list[StoredChat]:
        """Adds imported chats, all or none; returns those that were not here already.

        A chat is here if one of its id, or created at the same moment, has all of its messages. It gets a new id if its
        own is taken; its messages are as from ``all_messages``, parents first.
        """
        added: list[StoredChat] = []
        with self._db.write(durable=True):
            here: dict[object, list[str]] = defaultdict(list)
            for name, created in self._db.execute("SELECT id, created FROM chats WHERE deleted IS NULL"):
                here[name] += [name]
                here[created] += [name]
            for chat, messages in chats:
                if any(self._has(name, messages) for name in {*here[chat.id], *here[chat.created]}):
                    continue
                while self._db.execute("SELECT 1 FROM chats WHERE id = ?", (chat.id,)).fetchone():
                    chat = replace(chat, id=new_id())
                self._chats.insert(chat)
                numbers: dict[int, int | None] = {}
                for message, picked in messages:
                    parent = None if message.parent is None else numbers[message.parent]
                    row = (chat.id, parent, *row_of_message(message)[3:], picked)
                    numbers[message.id] = self._db.execute(_INSERT, row).lastrowid
                here[chat.id] += [chat.id]
                here[chat.created] += [chat.id]
                added.append(chat)
        return added

    def _has(self, chat: str, messages: Sequence[tuple[StoredMessage, int]]) -> bool:
        kept = self._db.execute("SELECT role, content FROM messages WHERE chat = ?", (chat,))
        return Counter((each.role, storable(each.content)) for each, _ in messages) <= Counter(kept)

    def _replied(self, chat: str, model: str, when: float) -> None:
        self._db.execute("UPDATE chats SET updated = ?, model = ? WHERE id = ?", (when, storable(model), chat))

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

    def _add(
        self,
        chat: str,
        parent: int | None,
        role: str,
        text: str,
        status: Status,
        *,
        model: str = "",
        drafter: str = "",
        seed: str = "",
        reason: str = "",
        writer: str = "",
    ) -> StoredMessage:
        row = (
            *(chat, parent, role, storable(text), b"", model, status, drafter, seed, "", reason, time.time()),
            storable(writer),
        )
        number = self._db.execute(_INSERT, (*row, self._next_pick(chat))).lastrowid
        return message_of_row((number, *row))

    def _next_pick(self, chat: str) -> int:
        return pick_of(self._db.execute("SELECT max(picked) FROM messages WHERE chat = ?", (chat,)).fetchone()[0]) + 1


def title_of(text: str) -> str:
    text = (MARK.sub("", text[:_READ]).strip() or image_label(text))[:_READ]
    plain = _ADDRESS.sub(r"\1", _LINK.sub(r"\1", _FENCE.sub("\n", text)))
    plain = _EMPHASIS.sub(r"\2", _LINE_MARKS.sub("", plain)).strip()
    if not plain:  # only code
        return _cut(next((line for line in text.splitlines()[1:] if line.strip(" `~")), text).strip())
    greeted = _without(_GREETING, plain)
    plain = _without(_ASKING, greeted)
    clause = " ".join(_first_clause(plain).split()).rstrip(" ,;:.。" if plain == greeted else " ,;:.。?")
    return _cut(clause[:1].upper() + clause[1:])


def _cut(clause: str) -> str:
    if len(clause) <= LENGTH:
        return clause
    cut = clause[: LENGTH - 1]
    comma, space = cut.rfind(", "), cut.rfind(" ")
    end = comma if comma >= LEAST_LENGTH else space if space >= LEAST_LENGTH else len(cut)
    return _LOOSE_END.sub("", cut[:end].rstrip(" ,;:")) + "…"


def _without(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub("", text, count=1).strip() or text


def _first_clause(text: str) -> str:
    for end in _CLAUSE.finditer(text):
        keep = end.end() if end.group() in "?!？！" else end.start()
        if len(text[:keep].strip()) >= LEAST_LENGTH or "\n" in end.group():
            return text[:keep]
    return text
