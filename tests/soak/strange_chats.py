"""Chats as nobody keeps them: cut imports, odd values, endless messages, strange ids, files in the way."""

import json
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.app.bundled_program import PROGRAM
from tests.app.chats.damaged import filled
from tests.app.chats.test_opening import ODD
from tests.app.terminal import Terminal
from tests.soak.strangers import Case, Found, reply, run, started, wrong

from slipstream.app.chats.backups import backups
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.store import ChatStore

WORDS: Final = ("the", "sea", "is", "wide", "and", "blue", "foxes", "sleep", "in", "dens")
LONG: Final = 3000  # messages in one line
SECONDS: Final = 60.0  # a command that takes longer hangs
HUGE: Final[dict[str, str]] = {
    "words": "the sea is wide " * 125_000, "one word": "x" * 2_000_000, "NULs": "\0" * 2_000_000,
    "spaces": " " * 2_000_000, "pictures": "🦊" * 500_000,
}  # fmt: skip


def late(home: Path, *words: str) -> str | None:
    """What is wrong with a command: how it ended, or more than ``SECONDS``."""
    begun = time.monotonic()
    found, took = wrong(run(home, *words)), time.monotonic() - begun
    return f"{words}: {found}" if found else f"{words}: {took:.0f} s" if took > SECONDS else None


def export(chats: int, messages: int, chance: random.Random, tokens: tuple[int, ...] = (), model: str = "") -> bytes:
    """An export of chats in one line each."""
    found = []
    for chat in range(chats):
        lines = [
            {
                "id": number + 1, "parent": number or None, "role": ("user", "assistant")[number % 2], "status": "done",
                "content": " ".join(chance.choices(WORDS, k=9)), "tokens": list(tokens) if number % 2 else [],
                "model": model,
            }
            for number in range(messages)
        ]  # fmt: skip
        found.append({"id": f"c{chat}", "title": f"chat {chat}", "created": 1.0 + chat, "messages": lines})
    return json.dumps({"format": "slipstream-chats", "version": 1, "chats": found}).encode()


def count(path: Path) -> int:
    with closing(ChatStore(path)) as store:
        return len(store.list_chats(1000))


def cut_imports(folder: Path, chance: random.Random) -> Found:
    """Imports killed at any moment: all chats or none, and the same import again makes no doubles."""
    file = folder / "export.json"
    file.write_bytes(export(20, 60, chance))
    for number in range(20):
        home = folder / str(number)
        with closing(ChatStore(home / "chats.db")):
            pass
        child = started(home, "chats", "import", str(file))
        time.sleep(2.5 * chance.random())
        child.send_signal(chance.choice((signal.SIGKILL, signal.SIGSEGV)))
        child.wait()
        there = count(home / "chats.db")
        again = late(home, "chats", "import", str(file))
        yield again or (None if there in (0, 20) and count(home / "chats.db") == 20 else f"{there} chats, then doubles")


def odd_values(folder: Path, chance: random.Random) -> Found:
    """Values of other types, times and JSON: each command goes on."""
    cases = [(column, value) for column, values in ODD.items() for value in values]
    for number, (column, value) in enumerate(chance.sample(cases, 24)):
        home, (table, name) = folder / str(number), column.split(".")
        filled(home / "chats.db", 3)
        with closing(sqlite3.connect(home / "chats.db")) as db:
            db.execute(f"UPDATE {table} SET {name} = ? WHERE rowid IN (2, 6)", (value,))
            db.commit()
        found = [late(home, "chats", *words) for words in (("list",), ("search", "message"), ("export",))]
        yield next(filter(None, found), None)


def long_chats(folder: Path, chance: random.Random) -> Found:
    """A chat of thousands of messages in one line: each command, and at last its deletion."""
    home = folder / "home"
    with closing(ChatStore(home / "chats.db")) as store:
        import_chats(store, export(1, LONG, chance), "export")
    commands = (
        ("list",), ("search", "foxes"), ("show", "c0"), ("export", "c0"), ("export", "c0", "--format", "json"),
        ("rename", "c0", "long"), ("delete", "c0"),
    )  # fmt: skip
    for words in commands:
        yield late(home, "chats", *words)
    yield None if count(home / "chats.db") == 0 else "it is still there"


def huge_messages(folder: Path, _: random.Random) -> Found:
    """Messages of millions of characters: commands and the next reply."""
    for number, (name, text) in enumerate(HUGE.items()):
        home = folder / str(number)
        with closing(ChatStore(home / "chats.db")) as store:
            chat = store.open_or_create("one").id
            store.add_user(chat, "Hi.")
            answer = store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1)
            store.finish_reply(answer.id, text=text, reason="stop")
        for words in (
            ("chats", "search", "sea"),
            ("chats", "export", "one"),
            ("run", "-p", "Hi.", "--max-tokens", "4"),
        ):
            found = late(home, *words)
            yield found and f"{name}: {found}"


def strange_ids(folder: Path, chance: random.Random) -> Found:
    """Imported token ids that the vocabulary does not have: the chat goes on."""
    done = reply(folder / "model", "--chat", "one")
    with closing(ChatStore(folder / "model" / "chats.db")) as store:
        own = next((message.model for message in store.messages("one") if message.model), "")
    yield None if own else f"no fingerprint: {done.stderr[-300:]}"
    for number, tokens in enumerate(((1 << 30,), (-1,), (2**31 - 1, -(2**31)), (99_999_999,) * 500)):
        home = folder / str(number)
        with closing(ChatStore(home / "chats.db")) as store:
            import_chats(store, export(1, 2, chance, tokens, own), "export")
        yield late(home, "run", "-p", "And?", "--max-tokens", "4", "--chat", "c0")


def in_the_way(folder: Path, _: random.Random) -> Found:
    """A folder in the place of the chats: the backup is used, and it is said."""
    filled(folder / "chats.db", 3)
    (folder / "chats.db").unlink()
    (folder / "chats.db").mkdir()
    done = run(folder, "chats", "list")
    said = "was a folder" in done.stderr and len(done.stdout.splitlines()) == 3 and backups(folder / "chats.db")
    yield None if said else f"{done.stdout}{done.stderr}"


def locked(folder: Path, _: random.Random) -> Found:
    """Another program holds the chats for a while at the start: the chat waits with a word, and opens."""
    for number in range(2):
        home = folder / str(number)
        filled(home / "chats.db", 1)
        with closing(sqlite3.connect(home / "chats.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with Terminal(*PROGRAM, home=home, size=(100, 30)) as terminal:
                terminal.shows("Waiting for up to")
                other.execute("ROLLBACK")
                terminal.shows("╭", "╰")
                terminal.type("\x11")
                yield None if terminal.ended() == 0 else terminal.shown


CASES: Final[dict[str, Case]] = {
    case.__name__: case
    for case in (cut_imports, odd_values, long_chats, huge_messages, strange_ids, in_the_way, locked)
}
