"""The tables of the chat store, their migrations, and the errors of SQLite in words.

``user_version`` counts the migrations of a file. A released migration is never edited; a change is a new migration.
Triggers update the full-text index, so that no writer needs to. ``trusted_schema`` stays on: before SQLite 3.41,
triggers cannot write to a full-text index without it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slipstream.app.chats.locking import ChatsInUseError
from slipstream.models.errors import SlipstreamError

FINISHED = "status IN ('done', 'interrupted')"
"""Condition for messages in the search index: neither streaming nor refused by the engine."""
_DAMAGED: Final = (
    "malformed",
    "not a database",
    "file is encrypted",
    "database corruption",
    "vtable constructor",
    "file format",
)
_FUTURE = 100  # maximum number of migrations that newer releases may add; a higher version means damage
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
    (
        "ALTER TABLE chats ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chats ADD COLUMN deleted REAL",  # time of deletion; NULL for a kept chat
        "ALTER TABLE messages ADD COLUMN picked INTEGER NOT NULL DEFAULT 0",  # of siblings, the greatest is shown
        """
        CREATE VIRTUAL TABLE message_words USING fts5(
            content, content='messages', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
        )
        """,
        "CREATE VIRTUAL TABLE title_words USING fts5(title, chat UNINDEXED, tokenize='unicode61 remove_diacritics 2')",
        f"INSERT INTO message_words (rowid, content) SELECT id, content FROM messages WHERE {FINISHED}",
        "INSERT INTO title_words (title, chat) SELECT title, id FROM chats",
        f"""
        CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.{FINISHED} BEGIN
            INSERT INTO message_words (rowid, content) VALUES (new.id, new.content);
        END
        """,
        f"""
        CREATE TRIGGER message_removed AFTER DELETE ON messages WHEN old.{FINISHED} BEGIN
            INSERT INTO message_words (message_words, rowid, content) VALUES ('delete', old.id, old.content);
        END
        """,
        f"""
        CREATE TRIGGER message_changed AFTER UPDATE OF content, status ON messages BEGIN
            INSERT INTO message_words (message_words, rowid, content)
                SELECT 'delete', old.id, old.content WHERE old.{FINISHED};
            INSERT INTO message_words (rowid, content) SELECT new.id, new.content WHERE new.{FINISHED};
        END
        """,
        """
        CREATE TRIGGER chat_added AFTER INSERT ON chats BEGIN
            INSERT INTO title_words (title, chat) VALUES (new.title, new.id);
        END
        """,
        """
        CREATE TRIGGER chat_removed AFTER DELETE ON chats BEGIN
            DELETE FROM title_words WHERE chat = old.id;
        END
        """,
        """
        CREATE TRIGGER chat_renamed AFTER UPDATE OF title ON chats WHEN old.title != new.title BEGIN
            UPDATE title_words SET title = new.title WHERE chat = old.id;
        END
        """,
    ),
    ("ALTER TABLE chats ADD COLUMN sampling TEXT NOT NULL DEFAULT ''",),  # JSON; empty for the default
    (  # so that nothing but a message that is shown reads its text, which may fill many pages
        "DROP INDEX messages_of_chat",
        "CREATE INDEX messages_tree ON messages (chat, id, parent, picked, status, role)",
        "CREATE INDEX messages_streaming ON messages (id) WHERE status = 'streaming'",
    ),
    (  # the name of the model that wrote a reply; ``model`` is its fingerprint
        "ALTER TABLE messages ADD COLUMN writer TEXT NOT NULL DEFAULT ''",
        """
        UPDATE messages SET writer = coalesce((SELECT model FROM chats WHERE chats.id = messages.chat), '')
            WHERE role = 'assistant' AND model = (
                SELECT model FROM messages AS last WHERE last.chat = messages.chat AND last.role = 'assistant'
                ORDER BY id DESC LIMIT 1)
        """,
    ),
)


def migrate(db: sqlite3.Connection, back_up: Callable[[int], None] = lambda version: None) -> None:
    """Migrates to the newest version, each step whole or not at all, after ``back_up`` unless the database is new."""
    kept = False
    while _version(db) != len(MIGRATIONS):
        with transaction(db):  # another process may be migrating: read the version again inside the lock
            version = _version(db)
            if version < 0 or version > len(MIGRATIONS) + _FUTURE:
                raise sqlite3.DatabaseError(f"database corruption: version {version}")
            if version > len(MIGRATIONS):
                raise SlipstreamError(
                    "these chats were written by a newer slipstream.",
                    "Update slipstream, or set SLIPSTREAM_HOME elsewhere.",
                )
            if version < len(MIGRATIONS):
                if version > 0 and not kept:
                    back_up(version)
                kept = True  # one backup of the original is enough; a new file needs none
                for statement in MIGRATIONS[version]:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version + 1}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """One transaction for writing; an error in the body rolls it back."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite rolls back by itself on a full disk
            db.execute("ROLLBACK")
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether an error means a damaged file, not a busy, full or missing one."""
    return isinstance(error, UnicodeDecodeError) or any(word in str(error) for word in _DAMAGED)


def storage_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> SlipstreamError:
    if is_damage(error):
        return SlipstreamError(
            f"the chats in {path} are damaged.", "Start slipstream again: it rescues what can be read."
        )
    reason = str(error)
    if "locked" in reason or "busy" in reason:
        return ChatsInUseError(f"{path} is in use by another program.", "Close it and try again.")
    if "full" in reason:
        return SlipstreamError(f"cannot write to {path}: the disk is full.", "Make some room and try again.")
    return SlipstreamError(
        f"cannot write to {path}: {reason.rstrip('.')}.",
        "Fix its rights, or set SLIPSTREAM_HOME to a folder that you can write to.",
    )
