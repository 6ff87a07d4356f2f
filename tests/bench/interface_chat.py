"""The chat over an engine that plays its replies: the program that part ``interface`` looks at.

``python -m tests.bench.interface_chat HOME PACE [CHAT]``: what is asked is replied to with words without
meaning, at the pace's seconds a step; the question says how many tokens.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Counted, Done, DrafterOffer, Loaded, Origin, Piece, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Prepare
from slipstream.app.speed import Speed
from slipstream.app.tui.app import ChatApp
from slipstream.models.errors import EngineDiedError

LEDGER: Final = "ledger"
"""A file with a line each ``EVERY`` tokens: the tokens so far, and the seconds of CPU and the bytes of the process."""
DATABASE: Final = "chats.db"
EVERY: Final = 500
TOGETHER: Final = 20  # tokens of a fast step, as the engine joins those that nobody could see one by one
LAST: Final = "omega"  # the last word of every reply
_PARAGRAPH: Final = 60  # tokens
_WRITERS: Final[tuple[tuple[Origin, str], ...]] = (
    ("accepted", "draft"),
    ("recovered", ""),
    ("accepted", "lookup"),
    ("bonus", ""),
)
_CODE: Final = "```python\ndef walk(tree):\n    return [walk(node) for node in tree]\n```\n\n"


def text_of(token: int) -> str:
    """The text of a token: prose, with a code block, a list and a heading now and then."""
    place, paragraph = token % _PARAGRAPH, token // _PARAGRAPH
    if place == _PARAGRAPH - 1:
        return {0: f"\n\n{_CODE}", 3: "\n\n- one\n- two\n\n", 6: "\n\n## On\n\n"}.get(paragraph % 9, "\n\n")
    return f"word{token % 97} "


def piece_of(token: int) -> Piece:
    """The same with who wrote it: no two beside each other are the same, so that each is drawn for itself."""
    return Piece(text_of(token), *_WRITERS[token % len(_WRITERS)])


class Player(Engine):
    """An engine without a model."""

    def __init__(self, home: Path, pace: float) -> None:
        """Keeps where the ledger is, and the seconds a step."""
        self._ledger, self._pace = home / LEDGER, pace
        self._stop = threading.Event()

    def load(self, load: Load, on_progress: Callable[[float | None], None] | None = None) -> Loaded:
        """Is ready at once."""
        return Loaded("played", "llama", 1 << 20, "played", "CPU", "same text", [DrafterOffer("none", True)], 44.0)

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        """Writes as many tokens as the question says, or until it is stopped."""
        self._stop.clear()
        asked = generate.messages[-1].content.split()
        total = int(asked[-1]) if asked and asked[-1].isdigit() else 1 << 20
        together = TOGETHER if self._pace < 1 else 1
        text, tokens = "", list[int]()
        yield Prefilling(generate.request, 20, 20)
        with self._ledger.open("a") as ledger:
            print(0, time.process_time(), _resident(), file=ledger, flush=True)
            while len(tokens) < total and not self._stop.wait(self._pace):
                at = len(tokens)
                pieces = [piece_of(token) for token in range(at, at + together)]
                text += "".join(piece.text for piece in pieces)
                tokens += range(at, at + together)
                speed = Speed(together / self._pace, tokens_per_step=1.0, steps=len(tokens))
                ms = 1e3 * self._pace
                yield Stepped(generate.request, pieces, tokens[at:], "none", 0, 0, ms, speed)
                if len(tokens) % EVERY == 0:
                    print(len(tokens), time.process_time(), _resident(), file=ledger, flush=True)
        yield Stepped(generate.request, [Piece(f"\n\n{LAST}", "plain")], [0], "none", 0, 0, 1.0, Speed())
        yield Done(generate.request, "stop", f"{text}\n\n{LAST}", [*tokens, 0], 20, 20, 0, 5.0, Speed(44.0))

    def prepare(self, prepare: Prepare) -> None:
        """Reads nothing ahead."""

    def tell_count(self, told: Callable[[Counted], None]) -> None:
        """Counts nothing."""

    def tell_wait(self, told: Callable[[str], None]) -> None:
        pass

    def tell_end(self, told: Callable[[EngineDiedError], None]) -> None:
        """Does not end."""

    def watch(self, on: bool) -> None:
        """Has no drafts."""

    def stop(self, request: int) -> None:
        """Ends a reply at once."""
        self._stop.set()

    def end_thoughts(self, request: int) -> None:
        """Has no thoughts."""

    def close(self, patience: float = 2.0) -> None:
        """Ends a reply at once."""
        self._stop.set()


def _resident() -> int:
    """Bytes of memory that this process holds; the most so far where the system does not say."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        return int(statm.read_text().split()[1]) * resource.getpagesize()
    from slipstream.app.platform.processes import peak_bytes

    return peak_bytes()


def main(home: Path, pace: float, chat: str | None) -> int:
    """Chats until its owner leaves."""
    with closing(ChatStore(home / DATABASE)) as store:
        app = ChatApp(Player(home, pace), Load("played.gguf"), store, chat)
        app.run()
        return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
