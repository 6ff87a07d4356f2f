"""Rows of chats and messages, read from one database and written to another."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.app.chats.lookup import title_of
from slipstream.app.chats.records import NAME, Figures, readable
from slipstream.app.chats.salvage import Value
from slipstream.app.chats.schema import transaction

Row = dict[str, Value]


@dataclass
class Rows:
    """Rows by column: chats by their ids, messages by their numbers."""

    chats: dict[str, Row] = field(default_factory=dict)
    messages: dict[int, Row] = field(default_factory=dict)

    def update(self, other: Rows) -> None:
        """Adds copies of other rows; they replace rows of the same id or number."""
        self.chats |= {name: dict(row) for name, row in other.chats.items()}
        self.messages |= {number: dict(row) for number, row in other.messages.items()}

    def lacks(self, other: Rows) -> bool:
        """Whether a message of ``other`` is missing here."""
        return any(
            number not in self.messages or is_other(row, self.messages[number])
            for number, row in other.messages.items()
        )

    def copy(self) -> Rows:
        """A deep copy."""
        rows = Rows()
        rows.update(self)
        return rows


def select(db: sqlite3.Connection, query: str, *values: object) -> list[Row]:
    cursor = db.execute(query, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def read_rows(db: sqlite3.Connection) -> Rows:
    """All rows of a database.

    Raises:
        sqlite3.Error: If it cannot be read; ``UnicodeDecodeError`` if the error's message is garbled.
    """
    chats, messages = select(db, "SELECT * FROM chats"), select(db, "SELECT * FROM messages")
    return Rows({str(row["id"]): row for row in chats}, {int(str(row["id"])): row for row in messages})


def rows_in(path: Path) -> Rows:
    """All rows of a file, opened for reading only; raises as ``read_rows`` does."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        db.text_factory = readable
        return read_rows(db)


def is_other(one: Row, other: Row) -> bool:
    """Whether two rows of the same number are different messages."""
    return any(one[name] != other[name] for name in ("chat", "role", "created"))


def write_rows(db: sqlite3.Connection, rows: Rows) -> None:
    """Adds rows to a database, in one transaction.

    Skips messages that the database already has. If other messages have the same numbers, all new ones are renumbered.
    A message whose parent is lost follows the one before it. Removes rows that the tables refuse from ``rows``.

    Raises:
        sqlite3.Error: If nothing can be written.
    """
    with transaction(db):
        _write(db, rows)


def _write(db: sqlite3.Connection, rows: Rows) -> None:
    chats, messages, known = rows.chats, rows.messages, read_rows(db)
    for name, row in list(chats.items()):
        if name not in known.chats and (not NAME.fullmatch(name) or not _inserted(db, "chats", row)):
            del chats[name]
    here = {
        number
        for number, row in messages.items()
        if number in known.messages and not is_other(row, known.messages[number])
    }
    taken = any(number in known.messages for number in messages.keys() - here)
    shift = max(known.messages) if taken else 0  # renumbers all, to keep their order
    last: dict[str, int] = {}
    for number in sorted(messages, key=lambda number: (messages[number]["role"] != "system", number)):
        row = messages[number]
        chat, parent = str(row["chat"]), messages.get(row["parent"]) if isinstance(row["parent"], int) else None
        first = parent is not None and parent["role"] == "system" and parent["parent"] is None
        if row["parent"] is not None and not (parent and parent["chat"] == chat and (first or parent["id"] < number)):  # type: ignore[operator]
            row["parent"] = last.get(chat)  # the message that it answered is lost
        elif parent and parent["id"] not in here:
            row["parent"] = int(str(parent["id"])) + shift
        _make_readable(row)
        if number not in here:
            new = {**row, "id": number + shift}
            if (chat not in chats and not _create_chat(db, chats, row)) or not _inserted(db, "messages", new):
                del messages[number]
                continue
        last[chat] = number if number in here else number + shift


def _make_readable(row: Row) -> None:
    """Clears figures and a seed that cannot be parsed."""
    try:
        Figures.unpacked(str(row["speed"]))
        int(str(row["seed"] or 0))
    except (ValueError, TypeError, AttributeError):
        row["speed"] = row["seed"] = ""


def _create_chat(db: sqlite3.Connection, chats: dict[str, Row], first: Row) -> bool:
    """Creates a chat whose own row is lost, from its first message."""
    name = str(first["chat"])
    title = title_of(str(first["content"])) if NAME.fullmatch(name) else ""
    row: Row = {"id": name, "title": title, "created": first["created"], "updated": first["created"], "model": ""}
    if not NAME.fullmatch(name) or not _inserted(db, "chats", row):
        return False
    chats[name] = row
    return True


def _inserted(db: sqlite3.Connection, table: str, row: Row) -> bool:
    places = ", ".join("?" * len(row))
    try:
        db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", tuple(row.values()))
    except sqlite3.IntegrityError:
        return False
    return True
