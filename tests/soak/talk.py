"""One engine that is talked to for hours: its memory, its files and what it leaves running.

A command: ``python -m tests.soak.talk [MINUTES]``; 480. Chats of the bundled model grow, are stopped, begun anew and
deleted, as a script of random steps wants it. Prints one line: what, how many, how many failed, the 95 % bound, and how
memory grew after a tenth of the time: less than 2 % an hour, or 8 MB, is no leak.
"""

import os
import random
import sys
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.app.engine.disturbed import bundled

from slipstream.app.chats.recording import history, recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Loaded, Stepped
from slipstream.app.protocol.requests import Generate, Sampling
from slipstream.models.errors import SlipstreamError

WORDS = ("the", "sea", "is", "wide", "foxes", "sleep", "in", "dens", "owls", "fly", "at", "night", "tell", "me")
GROWS = 0.02
NOISE = 8 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """What two processes hold: bytes of memory, open files."""

    at: float
    memory: tuple[int, int]
    files: tuple[int, int]


def usage(engine: int) -> Usage:
    folders = [Path("/proc") / str(number) for number in (os.getpid(), engine)]
    memory = [int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") for folder in folders]
    files = [len(list((folder / "fd").iterdir())) for folder in folders]
    return Usage(time.monotonic(), (memory[0], memory[1]), (files[0], files[1]))


def children() -> dict[int, str]:
    """The numbers of this process's children, each with the letter of its state."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended just now
            continue
        if int(parent) == os.getpid():
            found[int(stat.parent.name)] = state
    return found


def turn(engine: Engine, loaded: Loaded, store: ChatStore, chat: str, request: int, chance: random.Random) -> None:
    """Says something in a chat and keeps the reply, which may be stopped."""
    store.add_user(chat, " ".join(chance.choices(WORDS, k=chance.randint(1, 60))))
    messages = history(store.messages(chat), loaded.fingerprint)
    reply = store.begin_reply(chat, model="m", fingerprint=loaded.fingerprint, drafter="lookup", seed=request)
    generate = Generate(request, messages, Sampling(0.8, seed=request), chance.choice(("lookup", "none")), 32)
    stop = chance.randint(1, 12) if chance.random() < 0.2 else 0
    for step, event in enumerate(recorded(engine.reply(generate), store, reply.id)):
        if isinstance(event, Stepped) and step == stop:
            threading.Thread(target=engine.stop, args=(request,)).start()


def main(minutes: float = 480.0) -> int:
    chance, turns, failed = random.Random(11), 0, 0
    began = time.monotonic()
    ends, warm = began + 60 * minutes, began + 6 * minutes
    first: Usage | None = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(Engine(folder / "engine.log")) as engine, closing(ChatStore(folder / "chats.db")) as store:
            loaded = engine.load(bundled(folder / "derived"))
            (child,) = children()
            while time.monotonic() < ends:
                chats = store.list_chats()
                chat = chance.choice(chats).id if len(chats) > 5 or (chats and chance.random() < 0.7) else ""
                try:
                    turn(engine, loaded, store, chat or store.create().id, turns + 1, chance)
                    if len(chats) > 5 and chance.random() < 0.2:
                        store.delete(chance.choice(chats).id)
                        store.erase_deleted(0.0)
                except SlipstreamError as error:
                    failed += 1
                    print(f"turn {turns}: {error}", flush=True)
                turns += 1
                if first is None and time.monotonic() > warm:
                    first = usage(child)
            last = usage(child)
            left = [*children().values()].count("Z")
    first = first or last
    hours = max((last.at - first.at) / 3600, 1e-9)
    told = []
    for which, who in enumerate(("interface", "engine")):
        grown = last.memory[which] - first.memory[which]
        rate = grown / first.memory[which] / hours
        failed += grown > NOISE and rate > GROWS
        hourly = f" ({rate:+.1%} an hour)" if minutes >= 60 else ""
        told.append(f"{who} {grown / 1e6:+.1f} MB{hourly}, {last.files[which] - first.files[which]:+d} files")
        failed += last.files[which] > first.files[which] + 1  # the log is opened and closed
    failed += left
    bound = f", 95 % bound {3 / turns:.2%}" if not failed else ""
    print(f"talk: {turns:,} turns in {minutes:g} minutes, {failed} failed{bound}; {'; '.join(told)}; {left} zombies")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
