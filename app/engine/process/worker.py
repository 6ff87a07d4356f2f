"""The engine's process: reads requests from its standard input, writes events to its standard output."""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import IO, Final

from slipstream.app.engine.process.frames import ProtocolError, read_frame, write_frame
from slipstream.app.engine.process.watchdog import Heartbeat
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import (
    Beat,
    Divided,
    Done,
    Failed,
    Frame,
    Hello,
    Loaded,
    Loading,
    Prefilling,
    Stepped,
    Watched,
)
from slipstream.app.protocol.requests import EndThoughts, Generate, Load, Prepare, Quit, Stop, Watch
from slipstream.drafters.crash_note import elsewhere, map_note
from slipstream.models.errors import ContextFullError, EvaluationError, ModelChangedError, SlipstreamError

Event = Prefilling | Stepped
_QUIET: Final = 1.0  # seconds
_LAST_WORDS: Final = 1.0  # seconds for an orderly end after the interface ended; Linux kills it at once instead


class Throttle:
    """Joins steps that follow each other faster than the given time; passes a later step on at once.

    A model of a few million parameters takes 3,000 steps a second. Reading and showing each of them takes more
    processor time than computing it, on the same cores.
    """

    def __init__(self, emit: Callable[[Event], None], milliseconds: float) -> None:
        """Passes events on to ``emit``, steps at least ``milliseconds`` apart."""
        self._emit, self._seconds = emit, milliseconds / 1e3
        self._held: Stepped | None = None
        self._last = 0.0

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Stepped):
            self._emit(event)
            return
        self._held = joined(self._held, event) if self._held else event
        if perf_counter() - self._last >= self._seconds:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._emit(self._held)
            self._held, self._last = None, perf_counter()


def joined(first: Stepped, second: Stepped) -> Stepped:
    return replace(
        second,
        pieces=first.pieces + second.pieces,
        tokens=first.tokens + second.tokens,
        drafter=second.drafter if second.drafted else first.drafter,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
        ms=first.ms + second.ms,
        expected=first.expected + second.expected,
        choice=second.choice or first.choice,
        watched=_joined_traces(first.watched, second.watched),
        divided=_divided(first, second),
    )


def _joined_traces(first: Watched | None, second: Watched | None) -> Watched | None:
    if first is None or second is None:
        return second or first
    return Watched(first.trees + second.trees, second.by_drafter, second.drafter_depths)


def _divided(first: Stepped, second: Stepped) -> Divided | None:
    if first.divided is None and second.divided is None:
        return None
    one, two = first.parts, second.parts
    return Divided(one.reasoning + two.reasoning, one.answer + two.answer, two.under_way)


class Worker:
    """Serves one client: one thread reads requests while another works, so that a stop takes effect at once."""

    def __init__(self, requests: IO[bytes], events: IO[bytes], note: memoryview) -> None:
        """Starts to read requests; ``note`` outlives the process, see ``crash_note``."""
        self._requests, self._events, self._note = requests, events, note
        self._work: queue.SimpleQueue[Load | Generate | Prepare | None] = queue.SimpleQueue()
        self._stopped = 0  # replies up to this number must end
        self._answer_now = 0  # the reasoning of replies up to this number must end
        self._asked = self._answered = 0  # numbers of loads and replies requested and finished
        self._watched = False  # whether steps carry their drafts
        self._session: Session | None = None
        self._writing = threading.Lock()
        self._heartbeat = Heartbeat(self._tell, lambda: self._asked > self._answered)
        threading.Thread(target=self._listen, name="requests", daemon=True).start()

    def serve(self) -> None:
        self._tell(Hello())
        self._heartbeat.start()
        try:
            import_module("slipstream.app.engine.load")  # loads llama.cpp while the interface starts
        except (ImportError, OSError, RuntimeError) as error:  # their messages name only files
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise
        while (task := self._next()) is not None:
            if isinstance(task, Prepare):
                self._prepare(task)
                continue
            try:
                answer: Frame = self._load(task) if isinstance(task, Load) else self._reply(task)
            except SlipstreamError as error:
                lost = isinstance(error, EvaluationError) and elsewhere(self._note)
                if lost or isinstance(error, ModelChangedError):  # only a new process can continue
                    print(f"Error: {'the GPU failed: ' if lost else ''}{error.title}", file=sys.stderr, flush=True)
                    os._exit(1)
                number = task.request if isinstance(task, Generate) else 0
                answer = Failed(error.title, error.hint, error.code, number, isinstance(error, ContextFullError))
            self._answered += 1
            self._tell(answer)
        if self._session:
            self._session.close()

    def _next(self) -> Load | Generate | Prepare | None:
        patience: float | None = _QUIET
        while True:
            try:
                return self._work.get(timeout=patience)
            except queue.Empty:
                more = self._session is not None and self._session.idle()
                patience = 0.0 if more else self._session.due() if self._session else None

    def _load(self, task: Load) -> Loaded:
        from slipstream.app.engine.load import load

        if self._session:
            self._session.close()
            self._session = None
        self._session, loaded = load(task, lambda share: self._tell(Loading(share)), self._note)
        return loaded

    def _reply(self, task: Generate) -> Done:
        if self._session is None:
            raise SlipstreamError("no model is loaded.", "Load one first.")
        throttle = Throttle(self._tell, task.frame_ms)
        try:
            return self._session.reply(
                task,
                throttle,
                partial(self._cancelled, task.request),
                lambda: self._watched,
                lambda: self._answer_now >= task.request,
            )
        finally:
            throttle.flush()

    def _prepare(self, task: Prepare) -> None:
        """Prefills until another request comes; an error recurs with the reply, and is reported then."""
        stopped = self._stopped
        if self._session and self._work.empty():
            with suppress(SlipstreamError):
                self._session.prepare(task, lambda: not self._work.empty(), lambda: self._stopped > stopped, self._tell)

    def _cancelled(self, request: int) -> bool:
        """Whether to stop; also records progress, since it is called between steps, chunks and nodes of a graph."""
        self._heartbeat.progress()
        return self._stopped >= request

    def _listen(self) -> None:
        asked_to_leave = False
        try:
            while not asked_to_leave and (message := read_frame(self._requests)) is not None:
                if isinstance(message, Stop):
                    self._stopped = max(self._stopped, message.request)
                elif isinstance(message, EndThoughts):
                    self._answer_now = max(self._answer_now, message.request)
                elif isinstance(message, Watch):
                    self._watched = message.on
                elif isinstance(message, Load | Generate):
                    self._asked += 1
                    self._work.put(message)
                elif isinstance(message, Prepare) and self._asked == self._answered:
                    self._work.put(message)  # otherwise it predates the current reply
                asked_to_leave = isinstance(message, Quit)
        except (ProtocolError, OSError):
            pass  # as if the client had ended
        finally:
            self._stopped = sys.maxsize  # nothing reads a reply any more
            self._work.put(None)
            if not asked_to_leave:
                time.sleep(_LAST_WORDS)
                os._exit(1)

    def _tell(self, event: Frame) -> None:
        with suppress(BrokenPipeError), self._writing:  # the reading thread handles a closed pipe
            write_frame(self._events, event)
        if not isinstance(event, Beat):
            self._heartbeat.progress()


def main() -> None:
    """Serves; the caller has called ``harden`` before this module loads llama.cpp."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interface handles Ctrl-C
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a printf of a C library must not break a frame
    Worker(sys.stdin.buffer, events, map_note(Path(sys.argv[1]))).serve()
    os._exit(0)  # the reading thread may still block on its pipe
