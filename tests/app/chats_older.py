"""Files as earlier versions made them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.app.chats.schema import MIGRATIONS

OLDER: Final = tuple(range(1, len(MIGRATIONS)))
"""All versions before this one."""


def older(path: Path, version: int = 1) -> None:
    """Makes a file as an earlier version did.

    Args:
        path: The file.
        version: How many migrations it has had.
    """
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path)) as db:
        for migration in MIGRATIONS[:version]:
            for statement in migration:
                db.execute(statement)
        db.execute(
            "INSERT INTO chats (id, title, created, updated, model) VALUES ('aaaaaa', 'Old times', 1, 2, 'tern')"
        )
        row = "(?, 'aaaaaa', ?, ?, ?, x'01000000', 'f', ?, 'draft', '7', '', '', 1.0)"
        names = "id, chat, parent, role, content, tokens, model, status, drafter, seed, speed, reason, created"
        for values in (
            (1, None, "user", "about sandpipers", "done"),
            (2, 1, "assistant", "first", "done"),
            (3, 1, "assistant", "second", "done"),
            (4, 3, "user", "refused", "failed"),
            (5, 3, "user", "more", "done"),
            (6, 5, "assistant", "half", "streaming"),
        ):
            db.execute(f"INSERT INTO messages ({names}) VALUES {row}", values)
        db.execute(f"PRAGMA user_version = {version}")
        db.commit()
