"""Measures long and many chats: ``python -m tests.soak.long_chats [MESSAGES [CHATS]]`` from the repository.

A chat of 500 messages is to open in less than a second, and a search through years of chats is to keep up with typing.
Not a test: the times are those of this machine, and of what else it does.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter, process_time

from tests.app.tui.scripted import ScriptedEngine
from textual.pilot import Pilot

from slipstream.app.chats.exporting import exported
from slipstream.app.chats.importing import import_chats
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.requests import Load, Sampling
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


def timed(what: str, call: Callable[[], object]) -> None:
    """Prints how long a call takes."""
    start = perf_counter()
    call()
    print(f"{what:<44} {1e3 * (perf_counter() - start):8.1f} ms")


async def shown(what: str, pilot: Pilot[int], call: Awaitable[None]) -> None:
    """Prints how long it takes until all is on the screen, and how much of that the processor worked for it."""
    start, worked = perf_counter(), process_time()
    await call
    await pilot.pause()
    print(f"{what:<44} {1e3 * (perf_counter() - start):8.1f} ms  (work: {1e3 * (process_time() - worked):.1f})")


async def on_screen(store: ChatStore, chat: str) -> None:
    """Opens the chat on a screen, and brings what lies above."""
    app = ChatApp(ScriptedEngine(), Load("mini.gguf"), store, None, Sampling())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await shown("open on the screen", pilot, app._chat._open(chat, None))
        await shown("open once more", pilot, app._chat._open(chat, None))
        await shown("earlier messages", pilot, app._chat._earlier())
        await shown("go to a message far up", pilot, app._chat._open(chat, store.messages(chat)[40].id))


def main(messages: int = 500, chats: int = 200) -> None:
    """Fills a store and measures it."""
    with tempfile.TemporaryDirectory() as folder, closing(ChatStore(Path(folder) / "chats.db")) as store:
        chat = fill(store, messages, 0)
        for seed in range(1, chats):
            fill(store, 10, seed)
        print(f"a chat of {messages} messages beside {chats - 1} of 10")
        timed("read it", lambda: store.messages(chat))
        timed("its forks", lambda: store.forks(chat))
        timed("search a frequent word", lambda: store.search("foxes"))
        timed("search a rare one", lambda: store.search("question 249"))
        timed("list all chats", lambda: store.list_chats(1000))
        timed("export it", lambda: exported(store, [chat], "json"))
        raw = exported(store, [chat], "json").encode()
        timed("import it", lambda: import_chats(store, raw, "export"))
        asyncio.run(on_screen(store, chat))
        timed("delete it", lambda: store.delete(chat))
        timed("erase it", lambda: store.erase_deleted(0))
        timed("close", store.close)
        timed("open the store", lambda: ChatStore(Path(folder) / "chats.db").close())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
