"""Chats of earlier versions, chats to be damaged, and the ways to do it."""

import gzip
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.app.chats.schema import MIGRATIONS
from slipstream.app.chats.store import ChatStore

PAGE: Final = 4096
OLDER: Final = tuple(range(1, len(MIGRATIONS)))  # all versions before this one


def filled(path: Path, chats: int = 8) -> None:
    with closing(ChatStore(path)) as store:
        talk(store, chats)


def talk(store: ChatStore, chats: int) -> None:
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
    return {chat.id: [message.content for message in store.messages(chat.id)] for chat in store.list_chats(1000)}


def left_open(path: Path, before: int = 2, after: int = 3) -> dict[str, list[str]]:
    """Makes the files of a store that was killed, a part of it in the log; returns what it had."""
    busy = path.parent / "busy"
    with closing(ChatStore(busy / "chats.db")) as store:
        talk(store, before)
        store.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        talk(store, after)
        whole = kept(store)
        for name in ("chats.db", "chats.db-wal"):
            shutil.copy(busy / name, path.parent / name)
    shutil.rmtree(busy)
    return whole


def _overwrite(path: Path, count: int, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    for at in chance.sample(range(1, len(raw) // PAGE), count):
        raw[at * PAGE : at * PAGE + PAGE] = chance.choice((bytes(PAGE), chance.randbytes(PAGE)))
    path.write_bytes(raw)


DAMAGES: Final[dict[str, Callable[[Path, random.Random], object]]] = {
    "1 page": lambda path, chance: _overwrite(path, 1, chance),
    "5 pages": lambda path, chance: _overwrite(path, 5, chance),
    "header": lambda path, chance: path.write_bytes(chance.randbytes(100) + path.read_bytes()[100:]),
    "first page": lambda path, chance: path.write_bytes(chance.randbytes(PAGE) + path.read_bytes()[PAGE:]),
    "first half": lambda path, _: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path, _: path.write_bytes(b""),
    "deleted": lambda path, _: path.unlink(),
}
"""What may befall a closed file."""


def damaged_in(path: Path, how: str, chance: random.Random) -> None:
    DAMAGES[how](path, chance)


def older(path: Path, version: int = 1) -> None:
    """Copies a file that has had so many migrations."""
    path.touch(mode=0o600)
    frozen = Path(__file__).with_name("versions") / f"version-{version}.db.gz"
    path.write_bytes(gzip.decompress(frozen.read_bytes()))
