"""The client of the engine's process."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from slipstream.app.engine.process.process import EngineProcess, engine_environment
from slipstream.app.engine.process.recovery import Recovery
from slipstream.app.engine.process.watchdog import Limits
from slipstream.app.protocol.events import (
    VERSION,
    Beat,
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
from slipstream.app.protocol.requests import EndThoughts, Generate, Load, Prepare, Stop, Watch
from slipstream.models.errors import ContextFullError, EngineDiedError, SlipstreamError
from slipstream.models.llama.install import check_install

_WAITS: Final = 5.0  # seconds without any work after which the engine, or another machine, is waited for
_STARTING: Final = "while it started"
_ANSWER: Final = 1.0  # seconds in which all machines must answer after one was lost


class Engine:
    """Starts the engine's process on demand, and restarts it after a crash, with the changes of ``Recovery``.

    ``load`` and ``reply`` block; call them from one thread at a time. All other methods may be called from any thread.
    """

    def __init__(self, log: Path, limits: Limits = Limits()) -> None:  # noqa: B008 (frozen)
        self._log, self._limits = log, limits
        self._recovery = Recovery()
        self._process: EngineProcess | None = None
        self._wanted: Load | None = None
        self._greeted = False
        self._watched = False
        self._stopped = 0  # the last reply that was stopped
        self._answer_now = 0  # the last reply whose reasoning was ended
        self._under_way = 0  # number of loads and replies that a caller waits for
        self._on_end: Callable[[EngineDiedError], None] | None = None
        self._on_count: Callable[[Counted], None] = lambda _: None
        self._on_wait: Callable[[str], None] = lambda _: None
        self._waits = False  # whether the engine does no work at all
        self._machines: list[str] = []  # other machines that compute; during a load, all machines that it names
        self._lock = threading.Lock()  # only the thread that clears ``_process`` reports its end

    @property
    def process_id(self) -> int | None:
        process = self._process
        return process.pid if process else None

    def tell_end(self, on_end: Callable[[EngineDiedError], None]) -> None:
        """Sets the callback, run in a thread, for the end of an idle process."""
        self._on_end = on_end

    def tell_count(self, on_count: Callable[[Counted], None]) -> None:
        """Sets the callback, run in a thread, for the size of each prompt that ``prepare`` counts."""
        self._on_count = on_count

    def tell_wait(self, on_wait: Callable[[str], None]) -> None:
        """Sets the callback, run in a thread, for what a request begins to wait for and how long at most, in words."""
        self._on_wait = on_wait

    def start(self) -> None:
        """Starts the process if there is none; returns while it imports its libraries."""
        if self._process and self._process.alive:
            return
        self.close()
        self._greeted = False
        self._process = EngineProcess(
            self._log, self._limits, self._ended_idle, lambda counted: self._on_count(counted), self._beaten
        )

    def load(self, load: Load, on_progress: Callable[[float | None], None] | None = None) -> Loaded:
        """Loads a model, with the changes of ``Recovery`` after a crash; raises ``EngineDiedError`` at the next one."""
        self._wanted = load
        while True:
            try:
                return self._load(self._recovery.apply(load, self._log), on_progress)
            except EngineDiedError:
                if not self._recovery.can_retry:
                    raise

    def _load(self, load: Load, on_progress: Callable[[float | None], None] | None) -> Loaded:
        with self._request():
            self.start()
            if not self._greeted:
                self._greet()
                if self._watched:
                    self._send(Watch(True))  # repeats the last ``watch`` for the new process
            self._machines = _machines(load)
            if self._process:
                self._process.watchdog.expect_machines(bool(self._machines))
            self._send(load)
            while True:
                event = self._receive("while it loaded the model")
                if isinstance(event, Loading):
                    if on_progress:
                        on_progress(event.share)
                elif isinstance(event, Loaded):
                    self._machines = event.machines
                    return self._recovery.with_remark(event)

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        """Requests a reply; ends with ``Done``.

        If the process ends in a drafter's call, it is restarted, and the reply continues without that drafter. After
        another end, ``EngineDiedError`` is raised; the events so far remain valid.
        """
        begun, failed, ttft_ms = list(generate.begun), dict[str, str](), 0.0
        while True:
            try:
                for event in self._reply(replace(generate, begun=begun)):
                    if isinstance(event, Stepped):
                        begun += event.tokens
                    if isinstance(event, Stepped | Done):
                        ttft_ms = ttft_ms or event.ttft_ms  # an earlier process may have written the first token
                        event = event if event.ttft_ms == ttft_ms else replace(event, ttft_ms=ttft_ms)
                    if isinstance(event, Done):
                        event = replace(event, failed=failed | event.failed)
                    yield event
                return
            except EngineDiedError:
                if not self._recovery.can_retry or self._wanted is None:
                    raise
            failed |= self.load(self._wanted).failed

    def _reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        ended = False
        with self._request():
            self._send(generate)
            if self._stopped == generate.request:
                self.stop(generate.request)  # the earlier stop was sent to the last process
            if self._answer_now == generate.request:
                self.end_thoughts(generate.request)
            try:
                while not ended:
                    event = self._receive("while it wrote the reply", generate.request)
                    if isinstance(event, Prefilling | Stepped | Done) and event.request == generate.request:
                        if isinstance(event, Done):
                            ended = True
                            self._recovery.replied()
                        yield event
            finally:
                if not ended:  # the caller left early, or an error came
                    self._tell(Stop(generate.request))

    def prepare(self, prepare: Prepare) -> None:
        """Sends the typed text to prefill; without effect if the engine has ended."""
        self._tell(prepare)

    def watch(self, on: bool) -> None:
        """Switches the drafts in ``Stepped`` on or off; may be called at any time."""
        self._watched = on
        self._tell(Watch(on))

    def stop(self, request: int) -> None:
        self._stopped = request
        self._tell(Stop(request))

    def end_thoughts(self, request: int) -> None:
        """Ends the reasoning of a reply; its answer follows. Without effect outside the reasoning."""
        self._answer_now = request
        self._tell(EndThoughts(request))

    def close(self, patience: float = 2.0) -> None:
        """Ends the process; kills it after ``patience`` seconds, since it may have to save the state of a chat."""
        process = self._take()
        if process:
            process.close(patience)

    def _take(self) -> EngineProcess | None:
        """Clears ``_process``, so that its end is reported once."""
        with self._lock:
            process, self._process = self._process, None
        return process

    def _greet(self) -> None:
        late = threading.Timer(_WAITS, lambda: self._on_wait(f"the engine for at most {self._limits.start:.0f} s"))
        late.daemon = True
        late.start()
        try:
            hello = self._receive(_STARTING)
        finally:
            late.cancel()
        if not isinstance(hello, Hello) or hello.version != VERSION:
            self.close()
            raise SlipstreamError("the engine is of another version than the interface.", "Install slipstream again.")
        self._greeted = True

    def _tell(self, message: Prepare | Watch | Stop | EndThoughts) -> None:
        """Sends a message if the process still runs; otherwise the call that waits for an answer reports the crash."""
        process = self._process
        if process:
            with suppress(OSError, ValueError):
                process.write(message)

    def _send(self, message: Frame) -> None:
        try:
            if self._process is None:
                raise BrokenPipeError
            self._process.write(message)
        except (OSError, ValueError) as error:
            raise self._died("before it was asked") from error

    def _receive(self, when: str, request: int = 0) -> Frame:
        process = self._process
        while True:
            event = process.read() if process else None
            if event is None:
                raise self._died(when)
            if not isinstance(event, Failed):
                return event
            if event.request == request:
                kind = ContextFullError if event.full else SlipstreamError
                refusal = kind(event.title, event.hint)
                refusal.code = event.code
                raise refusal

    def _beaten(self, beat: Beat) -> None:
        """Reports once that a request waits: for another machine, or for an engine that does no work at all."""
        waited, self._waits = self._waits, beat.still >= _WAITS
        process = self._process
        if self._waits and not waited and process:
            self._on_wait(f"{', '.join(self._machines) or 'the engine'} for at most {process.watchdog.longest:.0f} s")

    def _died(self, when: str) -> EngineDiedError:
        process = self._take()
        if process is None:
            return EngineDiedError(f"the engine ended {when}: it is not running.", "The next message starts it again.")
        return self._report(process, when)

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Counts a request as under way; a crash at its very end is handled as idle."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            process = self._process
            if process and not process.alive:
                self._ended_idle(process)

    def _ended_idle(self, process: EngineProcess) -> None:
        """Reports a crash while idle if ``tell_end`` was called; otherwise the next request does."""
        with self._lock:
            on_end = self._on_end if process is self._process and not self._under_way else None
            if on_end:
                self._process = None
        if on_end:
            on_end(self._report(process, "while nothing was asked of it"))

    def _report(self, process: EngineProcess, when: str) -> EngineDiedError:
        end = process.end()
        self._recovery.ended(end)
        if when == _STARTING:
            try:
                check_install(engine_environment(os.environ))
            except SlipstreamError as error:  # more specific than how the process ended
                return EngineDiedError(error.title, error.hint)
        lost = _silent(self._machines) if end.cause == "machine" else ""
        return EngineDiedError(f"the engine ended {when}: {end.reason}.{lost}", end.hint)


def _machines(load: Load) -> list[str]:
    if not load.devices.rpc:
        return []
    from slipstream.models.llama.remote import endpoints  # loads ctypes and sockets

    return endpoints(load.devices.rpc)


def _silent(machines: Sequence[str]) -> str:
    from slipstream.models.llama.remote import ask_all

    lenders = ask_all(",".join(machines), _ANSWER)
    silent = [f" {lender.endpoint}: {lender.problem}." for lender in lenders if lender.problem]
    return "".join(silent) or f" {', '.join(lender.endpoint for lender in lenders)} answers again."
