"""An engine that is killed or stopped at random moments, for the tests and for the longer runs in ``tests/soak``."""

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipstream.app.chats.recording import recorded
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Message, Sampling
from slipstream.models.errors import EngineDiedError

SIGNALS = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
PHASES = ("load", "prefill", "decode")
TOKENS = 24
_DELAYS = {"load": 0.03, "prefill": 0.004, "decode": 0.03}  # seconds at most
_BUNDLED = replace(
    choose(Paths.default({}), drafter="none"), draft_model=None, heads=[], index=None, chats=None, threads=1
)
_PROMPTS = ("Tell me about the sea. ", "What do ships carry? ")
_TIMES = 30  # that a prompt says it: it is read in several chunks


def bundled(folder: Path) -> Load:
    """The bundled model alone, which is quick to start; what is measured at the first load is kept in the folder."""
    return replace(_BUNDLED, derived=str(folder), probed=None, states=None, left_out=None)


@dataclass
class Disturbed:
    engine: Engine  # the engine; its process changes
    load: Load  # what it loads
    store: ChatStore  # where replies are kept
    chance: random.Random  # chooses the moments
    milliseconds: list[float] = field(default_factory=list)  # from each kill to the error, or from each stop to the end
    processes: set[int] = field(default_factory=set)  # all processes that were killed
    # how often a kill or a stop fell into each phase; the others came too late, when nothing was asked
    phases: dict[str, int] = field(default_factory=dict)
    _ends: queue.SimpleQueue[EngineDiedError] = field(default_factory=queue.SimpleQueue)
    _plain: dict[str, str] = field(default_factory=dict)
    _requests: int = 0

    def begin(self) -> None:
        self.engine.tell_end(self._ends.put)
        self.engine.load(self.load)
        for prompt in _PROMPTS:
            self._plain[prompt] = self._whole(prompt)
            assert self._plain[prompt]

    def kill(self, number: signal.Signals, phase: str) -> str:
        """Kills the engine once, in "load", "prefill" or "decode", and lets the next message start it again; what went
        wrong."""
        prompt = self.chance.choice(_PROMPTS)
        while not self._ends.empty():  # an end between a start and its load is told, and raised by the load
            self._ends.get()
        blow = _Blow(self.chance.uniform(0, _DELAYS[phase]), lambda: self._strike(number))
        if phase == "load":
            self.engine.close()
            error = self._load_until_it_dies(blow)
            heard, kept, status = "", "", "interrupted"
        else:
            error, heard, kept, status = self._reply_until_it_dies(prompt, phase, blow)
        self.milliseconds.append(1e3 * (time.perf_counter() - blow.at))
        wrong = ""
        if number.name not in str(error):
            wrong = f"the reason is {error}"
        elif heard != kept or not self._plain[prompt].startswith(kept):
            wrong = f"{kept!r} was kept of {heard!r}"
        elif status not in ("interrupted", "done"):
            wrong = f"the reply is marked {status}"
        self.engine.load(self.load)
        again = self._whole(prompt)
        if not wrong and again != self._plain[prompt]:
            wrong = f"then {again!r} was written"
        return f"{phase}, {number.name}: {wrong}" if wrong else ""

    def stop(self, phase: str) -> str:
        """Stops a reply once at a random moment, and asks for another one; returns what went wrong."""
        first, second = self.chance.sample(_PROMPTS, 2)
        request = self._request(first)
        blow = _Blow(self.chance.uniform(0, _DELAYS[phase]), lambda: self.engine.stop(request.request))
        done = None
        for event in self.engine.reply(request):
            if isinstance(event, Prefilling if phase == "prefill" else Stepped):
                blow.fall()
            if isinstance(event, Done):
                done = event
        blow.fall()  # a reply may end before its first sign
        blow.wait()
        if done is None or done.reason not in ("cancelled", "length", "stop"):
            return f"{phase}: it ended with {done}"
        if done.reason == "cancelled":
            self.milliseconds.append(1e3 * (time.perf_counter() - blow.at))
            self._fell("decode" if done.speed.tokens else "prefill")
        if not self._plain[first].startswith(done.text):
            return f"{phase}: {done.text!r} was written"
        again = self._whole(second)
        return "" if again == self._plain[second] else f"{phase}: then {again!r} was written"

    def orphans(self) -> set[int]:
        return {pid for pid in self.processes if _runs(pid)}

    def _load_until_it_dies(self, blow: "_Blow") -> EngineDiedError:
        wanted = self.chance.randrange(0, 5)

        def came_further(_share: float | None = None) -> None:
            nonlocal wanted
            wanted -= 1
            if wanted < 0:
                blow.fall()

        try:
            self.engine.start()
            came_further()
            self.engine.load(self.load, came_further)
        except EngineDiedError as error:
            blow.wait()
            self._fell("load")
            return error
        blow.fall()
        return self._ends.get(timeout=60)  # the load was quicker than the blow

    def _reply_until_it_dies(self, prompt: str, phase: str, blow: "_Blow") -> tuple[EngineDiedError, str, str, str]:
        chat = self.store.create().id
        self.store.add_user(chat, prompt)
        message = self.store.begin_reply(chat, model="m", fingerprint="f", drafter="none", seed=1).id
        heard = ""
        error: EngineDiedError | None = None
        wanted = self.chance.randrange(0, 4)
        fell = "prefill"
        if not wanted:
            blow.fall()
        try:
            for event in recorded(self.engine.reply(self._request(prompt)), self.store, message):
                if isinstance(event, Stepped):
                    fell = "decode"
                    heard += "".join(piece.text for piece in event.pieces)
                wanted -= isinstance(event, Prefilling if phase == "prefill" else Stepped)
                if wanted <= 0:
                    blow.fall()
        except EngineDiedError as died:
            error = died
            self._fell(fell)
        blow.fall()
        blow.wait()
        kept = next(kept for kept in self.store.messages(chat) if kept.id == message)
        if error is None or "is not running" in error.title:  # it ended while nothing was asked: before, or afterwards
            error = self._ends.get(timeout=60)
        return error, heard, kept.content, kept.status

    def _strike(self, number: signal.Signals) -> None:
        pid = self.engine.process_id
        assert pid is not None
        self.processes.add(pid)
        os.kill(pid, number)

    def _fell(self, phase: str) -> None:
        self.phases[phase] = self.phases.get(phase, 0) + 1

    def _whole(self, prompt: str) -> str:
        *_, done = self.engine.reply(self._request(prompt))
        assert isinstance(done, Done)
        return done.text

    def _request(self, prompt: str) -> Generate:
        self._requests += 1
        sampling = Sampling(temperature=1.2, seed=5)
        return Generate(self._requests, [Message("user", prompt * _TIMES)], sampling, "none", max_tokens=TOKENS)


class _Blow:
    """Does something once, a while after it was let fall, from a thread of its own."""

    def __init__(self, delay: float, act: Callable[[], None]) -> None:
        self.at = 0.0  # when it was done
        self._act = act
        self._timer = threading.Timer(delay, self._do)
        self._falls = False

    def fall(self) -> None:
        if not self._falls:
            self._falls = True
            self._timer.start()

    def wait(self) -> None:
        self._timer.join()

    def _do(self) -> None:
        self.at = time.perf_counter()
        self._act()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
