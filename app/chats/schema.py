"""The tables of the chat store and how older ones become newer ones.

``user_version`` counts the migrations that a file has had. A migration is never edited once released: a change is one
more.
"""

from __future__ import annotations

import sqlite3

from slipstream.models.errors import SlipstreamError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE chats (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            model TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
            parent INTEGER REFERENCES messages (id) ON DELETE CASCADE,
            role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
            content TEXT NOT NULL,
            tokens BLOB NOT NULL,
            model TEXT NOT NULL,
            status TEXT NOT NULL CHECK (status IN ('streaming', 'done', 'interrupted', 'failed')),
            drafter TEXT NOT NULL,
            seed TEXT NOT NULL,
            speed TEXT NOT NULL,
            reason TEXT NOT NULL,
            created REAL NOT NULL
        )
        """,
        "CREATE INDEX messages_of_chat ON messages (chat, id)",
        "CREATE INDEX messages_of_parent ON messages (parent)",
        "CREATE INDEX chats_by_time ON chats (updated)",
    ),
)


def migrate(db: sqlite3.Connection) -> None:
    """Brings a database to the newest version, each migration whole or not at all.

    Raises:
        SlipstreamError: If a newer slipstream made the file.
        sqlite3.Error: If it cannot be read or written.
    """
    if _version(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")  # a second process may be migrating: look again inside the lock
    try:
        version = _version(db)
        if version > len(MIGRATIONS):
            raise SlipstreamError(
                "these chats were written by a newer slipstream.",
                "Update slipstream, or set SLIPSTREAM_HOME elsewhere.",
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
