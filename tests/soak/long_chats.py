"""A long chat beside many others: read, searched, shown, exported and erased.

A command: ``python -m tests.soak.long_chats [MESSAGES [CHATS]]``; 500 and 200. A chat is to open in less than a second,
and a search through years of chats is to keep up with typing. Prints how long each thing took, then one line: what, how
many, how many were late, and what a person waits for. The times are those of this machine, and of what else it does.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from tests.app.tui.scripted import ScriptedEngine
from textual.pilot import Pilot

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.tui.app import ChatApp

WORDS = (
    "the",
    "sea",
    "is",
    "wide",
    "and",
    "blue",
    "foxes",
    "sleep",
    "in",
    "dens",
    "while",
    "owls",
    "fly",
    "at",
    "night",
)
OPENS: Final = 1000.0
SEARCHES: Final = 100.0  # milliseconds that things, and searches, may take
BLOCK = "\n\n```python\ndef walk(tree):\n    return [walk(node) for node in tree]\n```\n\n- one\n- two\n\n"


def text_of(chance: random.Random, words: int) -> str:
    """Makes a message of several paragraphs."""
    return " ".join(chance.choices(WORDS, k=words)) + BLOCK + " ".join(chance.choices(WORDS, k=words))


def fill(store: ChatStore, messages: int, seed: int) -> str:
    """Keeps a chat."""
    chance = random.Random(seed)
    chat = store.create(f"chat {seed}").id
    for number in range(messages // 2):
        store.add_user(chat, f"question {number}: " + " ".join(chance.choices(WORDS, k=12)))
        reply = store.begin_reply(chat, model="m", fingerprint="f1", drafter="none", seed=1)
        store.finish_reply(reply.id, text=text_of(chance, 60), tokens=list(range(200)), reason="stop")
    return chat


@dataclass
class Times:
    """How long things took."""

    done: dict[str, float] = field(default_factory=dict)  # milliseconds of each thing
    late: list[str] = field(default_factory=list)  # those that took longer than they may

    def take(self, what: str, call: Callable[[], object], most: float = OPENS) -> None:
        """Does something and prints how long that took."""
        start = perf_counter()
        call()
        self._note(what, 1e3 * (perf_counter() - start), most, "")

    async def show(self, what: str, pilot: Pilot[int], call: Awaitable[None]) -> None:
        """Waits until all is on the screen, and prints how long that took and how much of it the processor worked."""
        start, worked = perf_counter(), process_time()
        await call
        await pilot.pause()
        milliseconds = 1e3 * (perf_counter() - start)
        self._note(what, milliseconds, OPENS, f"  (work: {1e3 * (process_time() - worked):.1f})")

    def _note(self, what: str, milliseconds: float, most: float, more: str) -> None:
        self.done[what] = milliseconds
        self.late += [what] * (milliseconds > most)
        print(f"{what:<44} {milliseconds:8.1f} ms{more}{'  LATE' * (milliseconds > most)}")


async def on_screen(times: Times, store: ChatStore, chat: str) -> None:
    """Opens the chat on a screen, and brings what lies above."""
    app = ChatApp(ScriptedEngine(), Load("mini.gguf"), store, None, Sampling())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await times.show("open on the screen", pilot, app.chat.chats.open(chat, None))
        await times.show("open once more", pilot, app.chat.chats.open(chat, None))
        await times.show("earlier messages", pilot, app.chat.page.show_more(later=False))
        await times.show("go to a message far up", pilot, app.chat.chats.open(chat, store.messages(chat)[40].id))


def main(messages: int = 500, chats: int = 200) -> int:
    """Fills a store and measures it; returns 1 if something was late."""
    times = Times()
    with tempfile.TemporaryDirectory() as folder, closing(ChatStore(Path(folder) / "chats.db")) as store:
        chat = fill(store, messages, 0)
        for seed in range(1, chats):
            fill(store, 10, seed)
        print(f"a chat of {messages} messages beside {chats - 1} of 10")
        times.take("read it", lambda: store.messages(chat))
        times.take("its forks", lambda: store.forks(chat))
        times.take("search a frequent word", lambda: store.search("foxes"), SEARCHES)
        times.take("search a rare one", lambda: store.search("question 249"), SEARCHES)
        times.take("list all chats", lambda: store.list_chats(1000))
        times.take("export it", lambda: exported(store, [chat], "json"))
        raw = exported(store, [chat], "json").encode()
        with closing(ChatStore(Path(folder) / "other.db")) as other:
            times.take("import it", lambda: import_chats(other, raw, "export"))
        asyncio.run(on_screen(times, store, chat))
        times.take("delete it", lambda: store.delete(chat))
        times.take("erase it", lambda: store.erase_deleted(0))
        times.take("close", store.close)
        times.take("open the store", lambda: ChatStore(Path(folder) / "chats.db").close())

    done = times.done
    print(
        f"long chats: {len(done)} things done with a chat of {messages} messages beside {chats - 1} of 10,"
        f" {len(times.late)} late; on the screen after {done['open on the screen']:.0f} ms, a message far up after"
        f" {done['go to a message far up']:.0f} ms, searched in {done['search a frequent word']:.0f} ms,"
        f" erased in {done['erase it']:.0f} ms"
    )
    return int(bool(times.late))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
