"""The ways in which a chat ends on a real terminal, and what must be true afterwards."""

import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.app.played_chat import DATABASE, LEDGER, STEP, ledger, words
from tests.app.terminal import Terminal, gone

from slipstream.app.chats.store import ChatStore

Victim = Literal["chat", "launcher"]
LAUNCH: Final = (
    "import sys; from slipstream.app.cli.launcher import run; sys.exit(run([sys.executable, *sys.argv[1:]]))"
)
SIZES: Final = ((80, 24), (40, 12), (200, 60), (20, 5), (120, 3), (81, 25), (60, 40))
LOST: Final = 0.25  # seconds of a streaming reply that may be lost
STEPS_LOST: Final = int(2 * LOST / STEP)  # steps that a busy machine may lose: it slows them down, too
FIRST: Final = STEPS_LOST + 25  # steps after which there must be something in the store


@dataclass(frozen=True, slots=True)
class Ending:
    name: str
    do: Callable[["Chat"], None]  # does it to a chat
    code: int | None  # the exit code that its shell sees; None where no shell is left
    clean: bool  # whether the chat ends by itself, with all that came; else it was killed


class Chat:
    def __init__(self, home: Path) -> None:
        self.home = home
        command = [sys.executable, "-c", LAUNCH, "-m", "tests.app.played_chat", str(home)]
        self.terminal = Terminal(*command, home=home)

    def bring(self, state: str) -> None:
        """Brings the chat to where it is to end: idle with words in the prompt, streaming, or in a dialog over that."""
        self.terminal.shows("ready")
        if state == "idle":
            self.terminal.type("half a thought")
            self.terminal.shows("half a thought")
            return
        self.terminal.type("hello\x1b\r")  # Alt-Enter: a second line
        self.terminal.type("you")
        self.terminal.shows("you")
        self.terminal.type("\r")
        self.terminal.until(lambda: (self.home / LEDGER).exists() and len(ledger(self.home)) > FIRST)
        if state == "dialog":
            self.terminal.type("\x1bOP")  # F1
            self.terminal.shows("Esc closes")

    def kill(self, victim: Victim, number: signal.Signals) -> None:
        os.kill(self.process(victim), number)

    def process(self, victim: Victim) -> int:
        chat = int((self.home / "process").read_text())
        if victim == "chat":
            return chat
        return int(Path(f"/proc/{chat}/stat").read_text().rpartition(")")[2].split()[1])


def _signal(victim: Victim, number: signal.Signals, code: int, clean: bool) -> Ending:
    return Ending(f"{number.name} to the {victim}", lambda chat: chat.kill(victim, number), code, clean)


def _ignored(number: signal.Signals) -> Ending:
    def do(chat: Chat) -> None:
        chat.kill("launcher", number)
        chat.terminal.type("\x11")

    return Ending(f"{number.name} to the launcher, then Ctrl-Q", do, 0, True)


def _resized(chat: Chat) -> None:
    chance = random.Random(3)
    for _ in range(40):
        chat.terminal.resize(*chance.choice(SIZES))
        chat.terminal.read()
    chat.terminal.resize(80, 24)
    chat.terminal.type("\x11")


def _stopped(chat: Chat) -> None:
    chat.kill("chat", signal.SIGSTOP)
    chat.kill("chat", signal.SIGCONT)
    chat.terminal.type("\x11")


ENDINGS: Final = (
    _signal("chat", signal.SIGTERM, 128 + signal.SIGTERM, True),
    _signal("chat", signal.SIGHUP, 128 + signal.SIGHUP, True),
    _signal("chat", signal.SIGQUIT, 128 + signal.SIGQUIT, True),
    _signal("chat", signal.SIGINT, 128 + signal.SIGINT, True),
    _signal("chat", signal.SIGKILL, 128 + signal.SIGKILL, False),
    _signal("chat", signal.SIGABRT, 128 + signal.SIGABRT, False),
    _signal("chat", signal.SIGSEGV, 128 + signal.SIGSEGV, False),
    _signal("launcher", signal.SIGTERM, 128 + signal.SIGTERM, True),
    _signal("launcher", signal.SIGHUP, 128 + signal.SIGHUP, True),
    _signal("launcher", signal.SIGKILL, 128 + signal.SIGKILL, True),
    _ignored(signal.SIGINT),
    _ignored(signal.SIGQUIT),
    Ending("STOP and CONT, then Ctrl-Q", _stopped, 0, True),
    Ending("40 sizes, then Ctrl-Q", _resized, 0, True),
    Ending("the window is closed", lambda chat: chat.terminal.hang_up(), None, True),
)
STATES: Final = ("idle", "streaming", "dialog")


def faults(ending: Ending, state: str, home: Path, on_time: bool = False) -> list[str]:
    """Ends a chat, and says all that is not as it must be; time counts only where the machine is idle."""
    chat = Chat(home)
    with chat.terminal as terminal:
        chat.bring(state)
        process = chat.process("chat")
        ending.do(chat)
        found = []
        if ending.code is not None and (code := terminal.ended()) != ending.code:
            found.append(f"its shell saw exit code {code}, not {ending.code}")
        if not gone(process, beside=terminal if ending.code is not None else None):
            found.append("it does not end")
        if ending.code is not None:
            while terminal.read(0.05):
                pass
            if not terminal.as_before:
                found.append(f"the terminal is left as {terminal.state}")
            if b"Traceback" in terminal.sent:
                found.append("it left a traceback")
    return found + lost(home, ending.clean, state == "idle", on_time)


def lost(home: Path, clean: bool, idle: bool, on_time: bool) -> list[str]:
    """What the store of a chat that has ended must have and has not."""
    with closing(ChatStore(home / DATABASE)) as store, closing(sqlite3.connect(home / DATABASE)) as database:
        if store.notice or database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            return ["the database is damaged"]
        chats = store.list_chats()
        if idle:
            return ["a chat came from nowhere"] if chats else []
        question, answer = store.messages(chats[0].id)
    found = [] if question.content == "hello\nyou" else [f"the question is {question.content!r}"]
    if answer.status != ("done" if clean else "interrupted"):
        found.append(f"the reply is {answer.status}")
    steps = ledger(home)
    kept = len(answer.content.split())
    if answer.content != words(kept):
        found.append(f"the reply is not what was written: {answer.content[-40:]!r}")
    missing = steps[kept:-1]  # the last one may have been on its way
    if missing:
        seconds = missing[-1].time - missing[0].time
        if clean or (seconds > LOST if on_time else len(missing) > STEPS_LOST):
            found.append(f"{len(missing)} steps are lost, the text of {seconds:.3f} s")
    return found
