"""Detects a hung engine: its process sends heartbeats, and the watchdog in the parent process checks them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from slipstream.app.platform.processes import work_done
from slipstream.app.protocol.events import Beat, Done, Failed, Frame, Loaded, Loading

EVERY: Final = 1.0  # seconds between two heartbeats
_WORKS: Final = 0.02  # minimum share of one core that counts as work; the heartbeat itself takes far less
HANGS: Final = ("it did nothing at all", "it came no further")
"""Beginnings of the verdicts on a process that waits, for example for a lost GPU."""


class SuspendClock:
    """Measures the time between calls, without time in which the machine was suspended or the process stopped.

    A gap far longer than the poll interval means a suspension; only ``longest`` of it is counted.
    """

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest, self._clock = longest, clock
        self._last = clock()

    def passed(self) -> float:
        now = self._clock()
        seconds, self._last = min(now - self._last, self._longest), now
        return seconds


class Heartbeat:
    """Reports from its own thread the seconds since the last progress, and since the process last did any work."""

    def __init__(
        self,
        send: Callable[[Beat], None],
        busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], float] | None = None,
    ) -> None:
        self._send, self._busy, self._work = send, busy, work or work_done
        self._clock = SuspendClock(2 * EVERY, clock)
        self._steps = self._steps_before = 0
        self._worked_before = self._work()
        self._quiet = self._still = 0.0

    def progress(self) -> None:
        """Records progress; the working thread may call it at any rate."""
        self._steps += 1

    def start(self) -> None:
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Measures the time since the last call, and reports it while a request is served."""
        passed, worked, steps = self._clock.passed(), self._work(), self._steps
        progressed = steps != self._steps_before or not self._busy()
        works = progressed or worked - self._worked_before > _WORKS * passed
        self._quiet = 0.0 if progressed else self._quiet + passed
        self._still = 0.0 if works else self._still + passed
        self._steps_before, self._worked_before = steps, worked
        if self._busy():
            self._send(Beat(self._quiet, self._still))

    def _run(self) -> None:
        while True:
            time.sleep(EVERY)
            self.beat()


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which an engine that serves a request counts as hung; suspension is not counted."""

    start: float = 120.0  # without a first frame: Python may load from a slow disk
    silent: float = 30.0  # without a heartbeat: the process is stopped, or one thread blocks all others
    still: float = 30.0  # without any work: a deadlock, a lost GPU or disk; after a request to stop, ``stop`` applies
    waiting: float = 300.0  # as ``still``, while other machines compute for it: a slow one may take long
    loading: float = 120.0  # as ``waiting``, until the model is loaded: a slow link takes that long for one tensor
    stuck: float = 600.0  # without progress, even if it works
    stop: float = 20.0  # without progress since it was asked to stop
    # without any work since it was asked to stop, while other machines compute for it: nothing else can stop it
    stop_waiting: float = 2.0


class Watchdog:
    """Judges an engine by its heartbeats while a caller waits for it. Safe to call from several threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting = 0
        self._greeted = False
        self._silent = 0.0
        self._beat: Beat | None = None
        self._elsewhere = False  # another process probes the files, with limits of its own
        self._since_stop: float | None = None
        self._machines = False  # whether other machines compute for it
        self._loads = False  # whether a model is loaded onto them

    @contextmanager
    def waiting(self) -> Iterator[None]:
        with self._lock:
            if not self._waiting:
                self._silent = 0.0
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def received(self, event: Frame) -> None:
        self._greeted, self._silent = True, 0.0
        if isinstance(event, Beat):
            self._beat = event
            return
        self._beat = None
        self._elsewhere = isinstance(event, Loading) and event.share is None
        if isinstance(event, Done | Failed | Loaded):
            self._since_stop = None
        if isinstance(event, Loaded):
            self._machines, self._loads = bool(event.machines), False

    def expect_machines(self, on: bool) -> None:
        """Sets whether other machines compute for it: they may be slow to load their share of a model."""
        self._machines = self._loads = on

    @property
    def longest(self) -> float:
        """Seconds without any work after which an engine counts as hung."""
        limits = self._limits
        return limits.still if not self._machines else limits.loading if self._loads else limits.waiting

    def stop_asked(self) -> None:
        if self._since_stop is None:
            self._since_stop = 0.0

    def verdict(self, seconds: float) -> str:
        """Why the engine counts as hung, ``seconds`` after the last verdict; empty while it may only be slow."""
        limits, beat = self._limits, self._beat
        with self._lock:
            if not self._waiting:
                return ""
            self._silent += seconds
            if self._since_stop is not None:
                self._since_stop += seconds
        if self._silent >= (limits.silent if self._greeted else limits.start):
            return f"it gave no sign of life for {self._silent:.0f} seconds"
        if beat is None or self._elsewhere:
            return ""
        stopping = min(self._since_stop or 0.0, beat.quiet) >= limits.stop
        if beat.still >= (limits.stop if stopping else self.longest):
            return f"{HANGS[0]} for {beat.still:.0f} seconds"
        waits = self._since_stop is not None and self._machines
        if waits and min(self._since_stop or 0.0, beat.still) >= limits.stop_waiting:
            return f"{HANGS[0]} for {beat.still:.0f} seconds and could not be stopped"
        if beat.quiet >= limits.stuck:
            return f"{HANGS[1]} for {beat.quiet / 60:.0f} minutes"
        if stopping:
            return f"it did not stop within {self._since_stop:.0f} seconds"
        return ""
