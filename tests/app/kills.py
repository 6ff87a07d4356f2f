"""Kills of the interface while a reply streams, on a real terminal, and what must be left; ends of its engine."""

import os
import random
import signal
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.app.bundled_program import PROGRAM, words
from tests.app.played_chat import LEDGER, ledger
from tests.app.terminal import Terminal, gone
from tests.app.tui.endings import FIRST, LOST, Chat, lost

from slipstream.app.chats.store import ChatStore

QUESTION: Final = "Tell me a long story about a fox, an owl and a river."
RANGE: Final = 250  # steps of a played reply, or milliseconds of a real one, within which it is killed
ENGINE_ENDS: Final = 2.0  # seconds in which the engine of a killed interface ends
Moment = Literal["loading", "idle", "writing"]
MOMENTS: Final[tuple[Moment, ...]] = ("loading", "idle", "writing")
_WORKER: Final = "slipstream.app.engine.process.worker"


def kill_played(home: Path, chance: random.Random) -> list[str]:
    """Kills a chat with played replies after some steps, and says all that is not as it must be."""
    steps = FIRST + chance.randrange(RANGE)
    chat = Chat(home)
    with chat.terminal as terminal:
        terminal.shows("ready")
        terminal.type("hello\x1b\ryou")
        terminal.shows("you")
        terminal.type("\r")
        terminal.until(lambda: (home / LEDGER).exists() and len(ledger(home)) >= steps)
        chat.kill("chat", signal.SIGKILL)
        found = _terminal(terminal)
    return found + lost(home, clean=False, idle=False, on_time=False)


@dataclass(frozen=True, slots=True)
class RealKill:
    faults: list[str]  # all that is not as it must be, whatever the machine's speed
    engine: float  # seconds until its engine had ended
    late: int  # words that had been on the screen for 250 ms, and are lost


def kill_real(home: Path, chance: random.Random, reply: str) -> RealKill:
    """Kills the chat with the bundled model while it writes the reply that is known."""
    seen: list[tuple[float, int]] = []
    with Terminal(*PROGRAM, home=home, size=(100, 40)) as terminal:
        terminal.shows("╭", "╰")
        terminal.type(QUESTION)
        terminal.shows("river.")
        terminal.type("\r")
        terminal.replies()
        end = time.monotonic() + chance.randrange(RANGE) / 1e3
        while time.monotonic() < end:
            terminal.read(0.01)
            seen.append((time.monotonic(), _words_seen(reply, terminal.shown)))
        chat = _child(terminal, "--as-child")
        engine = _child(terminal, _WORKER)
        os.kill(chat, signal.SIGKILL)
        killed = time.monotonic()
        ends = gone(engine, beside=terminal)
        took = time.monotonic() - killed
        found = _terminal(terminal) + ([] if ends else ["its engine does not end"])
    with closing(ChatStore(home / "chats.db")) as store, closing(sqlite3.connect(home / "chats.db")) as database:
        if store.notice or database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return RealKill([*found, "the database is damaged"], took, 0)
        (kept,) = store.list_chats()
        question, answer = store.messages(kept.id)
    if question.content != QUESTION:
        found.append(f"the question is {question.content!r}")
    if not reply.startswith(answer.content):
        found.append(f"the reply is not the model's: {answer.content[-60:]!r}")
    if answer.status not in ("interrupted", "done"):
        found.append(f"the reply is {answer.status}")
    safe = max((count for when, count in seen if when <= killed - LOST), default=0)
    return RealKill(found, took, max(0, safe - len(words(answer.content))))


def end_engine(home: Path, number: signal.Signals, moment: Moment, words: str, chance: random.Random) -> float:
    """Ends the engine of the whole program with a signal; returns the seconds until the screen says the words."""
    with Terminal(*PROGRAM, home=home, size=(160, 40)) as terminal:
        terminal.shows("╭", "╰")
        if moment != "loading":
            terminal.shows("is ready")
        if moment == "writing":
            terminal.type(f"{QUESTION}\r")
            terminal.replies()
        terminal.until(lambda: bool(_children(terminal, _WORKER)))
        end = time.monotonic() + chance.randrange(RANGE) / 1e3
        while time.monotonic() < end:
            terminal.read(0.01)
        os.kill(_child(terminal, _WORKER), number)
        killed = time.monotonic()
        terminal.until(lambda: words in terminal.shown)
        return time.monotonic() - killed


def _terminal(terminal: Terminal) -> list[str]:
    """What the launcher has not put right."""
    code = terminal.ended()
    while terminal.read(0.05):
        pass
    found = [] if code == 128 + signal.SIGKILL else [f"its shell saw exit code {code}"]
    return found if terminal.as_before else [*found, f"the terminal is left as {terminal.state}"]


def _words_seen(reply: str, shown: str) -> int:
    """How many words of a reply are on a screen that has its newest words, by the longest run of them."""
    wanted, screen = words(reply), " ".join(words(shown))
    for count in range(len(wanted), 3, -1):
        if " ".join(wanted[max(count - 8, 0) : count]) in screen:
            return count
    return 0


def _child(terminal: Terminal, mark: str) -> int:
    (process,) = _children(terminal, mark)
    return process


def _children(terminal: Terminal, mark: str) -> list[int]:
    waiting, found = [terminal.process], []
    while waiting:
        process = waiting.pop()
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if mark.encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
            for thread in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return found
