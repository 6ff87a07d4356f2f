"""Chats to be damaged, and the ways to do it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.app.chats.store import ChatStore

FRAME: Final = 24 + 4096


def filled(path: Path, chats: int = 8) -> None:
    """Makes a store with short and long messages, and closes it."""
    with closing(ChatStore(path)) as store:
        talk(store, chats)


def talk(store: ChatStore, chats: int) -> None:
    """Has chats of four messages; some fill several pages of the file."""
    chance = random.Random(chats)
    for number in range(chats):
        chat = store.create().id
        for turn in range(2):
            store.add_user(chat, f"message {number}.{turn} " + " ".join(str(chance.random()) for _ in range(4)))
            reply = store.begin_reply(chat, model="m", fingerprint="f", drafter="draft", seed=turn)
            length = 900 if (number + turn) % 4 == 0 else 30
            text = f"message {number}.{turn}, answered: " + " ".join(str(chance.random()) for _ in range(length))
            store.finish_reply(reply.id, text=text, tokens=list(range(length)), reason="stop")


def kept(store: ChatStore) -> dict[str, list[str]]:
    """The texts of all chats."""
    return {chat.id: [message.content for message in store.messages(chat.id)] for chat in store.list_chats(1000)}


def left_open(path: Path) -> dict[str, list[str]]:
    """Makes the files of a store that was killed, a part of it in the log; returns what it had."""
    busy = path.parent / "busy"
    with closing(ChatStore(busy / "chats.db")) as store:
        talk(store, 2)
        store.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        talk(store, 3)
        whole = kept(store)
        for name in ("chats.db", "chats.db-wal"):
            shutil.copy(busy / name, path.parent / name)
    shutil.rmtree(busy)
    return whole


def _flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]


# what may befall a log
BREAKS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "header": lambda raw: b"\xff" * 32 + raw[32:],
    "magic": lambda raw: _flipped(raw, 0),
    "salt": lambda raw: _flipped(raw, 17),
    "first frame": lambda raw: _flipped(raw, 32 + 30),
    "a frame in the middle": lambda raw: _flipped(raw, 32 + len(raw) // FRAME // 2 * FRAME + 2000),
    "a page of zeros": lambda raw: raw[: 32 + 2 * FRAME] + bytes(FRAME) + raw[32 + 3 * FRAME :],
    "all garbage": lambda raw: random.Random(1).randbytes(len(raw)),
    "cut short": lambda raw: raw[: len(raw) * 2 // 3],
}
