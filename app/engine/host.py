"""The engine's process as the rest of the application sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slipstream.app.engine.child import Child
from slipstream.app.engine.cures import Cures
from slipstream.app.engine.patience import Limits
from slipstream.app.engine.protocol import (
    VERSION,
    Counted,
    Done,
    Failed,
    Frame,
    Hello,
    Loaded,
    Loading,
    Prefilling,
    Stepped,
)
from slipstream.app.engine.requests import Generate, Load, Prepare, Stop, Watch
from slipstream.models.errors import EngineDiedError, SlipstreamError


class Engine:
    """Starts the engine's process when it is first needed, and again after it died, changed where that is the cure.

    ``load`` and ``reply`` block and belong to one thread at a time; ``prepare``, ``watch``, ``stop`` and ``close`` may
    come from any.
    """

    def __init__(self, log: Path, limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
        """Keeps where the process writes its log, and how long it may be silent; nothing is started yet."""
        self._log, self._limits = log, limits
        self._cures = Cures()
        self._child: Child | None = None
        self._greeted = False
        self._watched = False
        self._asked = 0  # loads and replies that somebody waits for
        self._on_end: Callable[[EngineDiedError], None] | None = None
        self._on_count: Callable[[Counted], None] = lambda _: None
        self._lock = threading.Lock()  # who takes the child away words its end

    @property
    def process_id(self) -> int | None:
        """The process, or None while there is none."""
        child = self._child
        return child.pid if child else None

    def tell_end(self, told: Callable[[EngineDiedError], None]) -> None:
        """Has this called, in a thread, when the process ends while nothing is asked of it."""
        self._on_end = told

    def tell_count(self, told: Callable[[Counted], None]) -> None:
        """Has this called, in a thread, with what every ``prepare`` takes of the context."""
        self._on_count = told

    def start(self) -> None:
        """Starts the process if there is none; it gets ready while the caller does other things.

        Raises:
            SlipstreamError: If it cannot be started, or its log not be written.
        """
        if self._child and self._child.alive:
            return
        self.close()
        self._greeted = False
        self._child = Child(self._log, self._limits, self._ended_unasked, lambda counted: self._on_count(counted))

    def load(self, load: Load, on_progress: Callable[[float | None], None] | None = None) -> Loaded:
        """Loads a model: with half the context after memory ran out, on the processor after its GPU failed.

        Raises:
            SlipstreamError: If it cannot be loaded, or has ended too often in a row; the title says why.
            EngineDiedError: If the process ended while loading.
        """
        load = self._cures.apply(load, self._log)
        with self._asking():
            self.start()
            if not self._greeted:
                self._greet()
                if self._watched:
                    self._send(Watch(True))  # the process before knew
            self._send(load)
            while True:
                event = self._receive("while it loaded the model")
                if isinstance(event, Loading):
                    if on_progress:
                        on_progress(event.share)
                elif isinstance(event, Loaded):
                    return self._cures.told(event)

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        """Asks for a reply; ends with ``Done``.

        Raises:
            SlipstreamError: If it cannot be served; the engine lives on.
            EngineDiedError: If the process ended; what was yielded so far is what there is.
        """
        ended = False
        with self._asking():
            self._send(generate)
            try:
                while not ended:
                    event = self._receive("while it wrote the reply", generate.request)
                    if isinstance(event, Prefilling | Stepped | Done) and event.request == generate.request:
                        if isinstance(event, Done):
                            ended = True
                            self._cures.replied()
                        yield event
            finally:
                if not ended:  # the listener left early, or an error came
                    self.stop(generate.request)

    def prepare(self, prepare: Prepare) -> None:
        """Lets the engine read what is being typed, as long as it has nothing else to do; harmless if it has ended."""
        self._tell(prepare)

    def watch(self, on: bool) -> None:
        """Has every step of this reply and the next ones carry its draft, or no longer; harmless at any time."""
        self._watched = on
        self._tell(Watch(on))

    def stop(self, request: int) -> None:
        """Ends a reply; its ``Done`` still comes. May wait for an engine that hangs."""
        self._tell(Stop(request))

    def close(self, patience: float = 2.0) -> None:
        """Ends the process; harmless if there is none.

        Args:
            patience: Seconds that it may take, to keep the state of a chat for example, before it is killed.
        """
        child = self._take()
        if child:
            child.close(patience)

    def _take(self) -> Child | None:
        """Takes the process away, so that nobody else words its end."""
        with self._lock:
            child, self._child = self._child, None
        return child

    def _greet(self) -> None:
        hello = self._receive("while it started")
        if not isinstance(hello, Hello) or hello.version != VERSION:
            self.close()
            raise SlipstreamError("the engine is of another version than the interface.", "Install slipstream again.")
        self._greeted = True

    def _tell(self, message: Prepare | Watch | Stop) -> None:
        """Sends what need not be heard: if the process has ended, whoever waits for it finds out why."""
        child = self._child
        if child:
            with suppress(OSError, ValueError):
                child.write(message)

    def _send(self, message: Frame) -> None:
        try:
            if self._child is None:
                raise BrokenPipeError
            self._child.write(message)
        except (OSError, ValueError) as error:
            raise self._died("before it was asked") from error

    def _receive(self, when: str, request: int = 0) -> Frame:
        """Reads the next event; a refusal of this request is raised, one of an earlier reply is nobody's any more."""
        child = self._child
        while True:
            event = child.read() if child else None
            if event is None:
                raise self._died(when)
            if not isinstance(event, Failed):
                return event
            if event.request == request:
                refusal = SlipstreamError(event.title, event.hint)
                refusal.code = event.code
                raise refusal

    def _died(self, when: str) -> EngineDiedError:
        child = self._take()
        if child is None:
            return EngineDiedError(f"the engine ended {when}: it is not running.", "The next message starts it again.")
        return self._worded(child, when)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """While this is open, whoever asks words the end; an end that falls on its last moment is nobody's."""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1
            child = self._child
            if child and not child.alive:
                self._ended_unasked(child)

    def _ended_unasked(self, child: Child) -> None:
        """Words the end of a process of which nothing was asked, where somebody listens; else the next request does."""
        with self._lock:
            told = self._on_end if child is self._child and not self._asked else None
            if told:
                self._child = None
        if told:
            told(self._worded(child, "while nothing was asked of it"))

    def _worded(self, child: Child, when: str) -> EngineDiedError:
        end = child.end()
        self._cures.ended(end.cause)
        return EngineDiedError(f"the engine ended {when}: {end.reason}.", end.hint)
