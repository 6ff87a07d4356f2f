"""A chat whose replies are played, as a program: ``python -m tests.app.played_chat HOME``.

The reply is numbered words without end. A ledger beside the database has a line for every step, written before the chat
hears of it: how many words there are, and when that was.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.app.tui.scripted import ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Done, Piece, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load
from slipstream.app.speed import Speed
from slipstream.app.tui.app import ChatApp

STEP = 0.004  # seconds a step
LEDGER, DATABASE = "ledger", "chats.db"


def word(number: int) -> str:
    return f"w{number}" + ("\n" if number % 8 == 0 else " ")


def words(count: int) -> str:
    return "".join(map(word, range(1, count + 1)))


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the ledger: words so far, and the time that the step began in seconds."""

    words: int
    time: float


def ledger(home: Path) -> list[Step]:
    lines = (home / LEDGER).read_text().splitlines(keepends=True)
    return [Step(int(count), float(when)) for count, when in (line.split() for line in lines if line.endswith("\n"))]


class PlayedEngine(ScriptedEngine):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._stop = threading.Event()

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        self._stop.clear()
        text, tokens = "", list[int]()
        while not self._stop.wait(STEP):
            tokens.append(len(tokens) + 1)
            new = word(tokens[-1])
            text += new
            os.write(self._file, f"{tokens[-1]} {time.monotonic()}\n".encode())
            yield Stepped(generate.request, [Piece(new, "plain")], [tokens[-1]], "none", 0, 0, 1e3 * STEP, Speed())
        yield Done(generate.request, "cancelled", text, tokens, 20, 20, 0, 5.0, Speed())

    def stop(self, request: int) -> None:
        self._stop.set()

    def close(self, patience: float = 2.0) -> None:
        self._stop.set()


def main(home: Path) -> int:
    with closing(ChatStore(home / DATABASE)) as store:
        (home / "process").write_text(str(os.getpid()))
        app = ChatApp(PlayedEngine(home / LEDGER), Load("mini.gguf"), store, models=ScriptedModels)
        app.run()
        return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
