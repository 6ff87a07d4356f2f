"""Part ``calls``: how many of slipstream's functions the interface calls for a message and a reply of one token.

The engine plays the reply; the count ends when its end is on the screen. Each call is counted where the called function
stands, in all threads, without those of Textual and of the libraries; a second message is counted, since the first one
also does what happens once. The guard of input is called once for each of Textual's messages, and is told apart.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from tests.bench.interface_chat import Player

import slipstream.app
from slipstream.app.bench.report import table
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.app import ChatApp
from slipstream.app.tui.engine_service import ReplyDone
from slipstream.models.errors import SlipstreamError

TEXT: Final = "Tell me about the sea 1"  # the message; the engine writes as many tokens as its last word says
CHATS: Final = "app/chats"
GUARD: Final = "app/tui/guarded_app.py"
ROUNDS: Final = 3  # the least counts: what a timer does meanwhile belongs to no message
_PACE: Final = 1.0  # seconds of a step, which then has one token
_PATIENCE: Final = 60.0
_ROOT: Final = Path(slipstream.app.__file__).parent.parent


@dataclass(frozen=True, slots=True)
class CallCounts:
    """Calls of slipstream's functions for one message."""

    by_file: dict[str, int]  # calls by the file of the function, such as ``app/tui/chat/screen.py``

    @property
    def total(self) -> int:
        return sum(self.by_file.values())

    @property
    def own(self) -> int:
        """Without those of the guard of input."""
        return self.total - self.by_file.get(GUARD, 0)

    @property
    def chats(self) -> int:
        """Those that store the messages."""
        return sum(count for file, count in self.by_file.items() if file.startswith(CHATS))


def measure_calls(tell: Callable[[str], None]) -> CallCounts:
    """Sends two messages to each of some new chats, and counts the calls for the second.

    Raises:
        SlipstreamError: If the chat does not answer for a minute.
    """
    tell("calls: a message and a reply of one token")
    counts = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
            counts.append(asyncio.run(_measured(Path(folder))))
    return min(counts, key=lambda each: each.own)


async def _measured(home: Path) -> CallCounts:
    ended = asyncio.Event()

    def look(message: object) -> None:
        if isinstance(message, ReplyDone):
            ended.set()

    with closing(ChatStore(home / "chats.db")) as store:
        settings = SettingsFile(home / "settings.toml")
        app = ChatApp(Player(home, _PACE), Load("played.gguf"), store, sampling=Sampling(seed=7), settings=settings)
        async with app.run_test(size=(120, 40), message_hook=look) as pilot:
            await _until(lambda: app.chat.model.loaded is not None)
            app.chat.prompt.put(TEXT)
            await pilot.press("enter")
            await asyncio.wait_for(ended.wait(), _PATIENCE)
            app.chat.prompt.put(TEXT)
            await pilot.pause(_PACE)
            ended.clear()
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())  # only new threads are profiled
            with _counted() as calls:
                await pilot.press("enter")
                await asyncio.wait_for(ended.wait(), _PATIENCE)
                await pilot.pause()  # until it is drawn
            return CallCounts(dict(calls.most_common()))


async def _until(done: Callable[[], bool]) -> None:
    for _ in range(int(_PATIENCE / 0.01)):
        if done():
            return
        await asyncio.sleep(0.01)
    raise SlipstreamError("the chat was not ready within a minute.")


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Counts the calls of slipstream's functions in all threads, by file."""
    calls: Counter[str] = Counter()
    files: dict[str, str] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        name = frame.f_code.co_filename
        if name not in files:
            path = Path(name)
            files[name] = path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else ""
        if files[name]:
            calls[files[name]] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def calls_text(counts: CallCounts) -> str:
    """The table of the part."""
    rows = [(file, f"{count:,}") for file, count in list(counts.by_file.items())[:20]]
    rows += [("all", f"{counts.total:,}"), (f"without {GUARD}", f"{counts.own:,}")]
    rows += [(f"without that and {CHATS}", f"{counts.own - counts.chats:,}")]
    return table("calls: a message and a reply of one token", ("file", "calls"), rows, [])
