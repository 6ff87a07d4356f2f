"""When to give an engine up: not while it is slow, but when it hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from slipstream.app.engine.protocol import Beat, Done, Failed, Frame, Loaded, Loading


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, of those that the machine was awake, after which an engine that is waited for counts as hung.

    Attributes:
        start: Without a first word: Python may come from a slow disk.
        silent: Without a sign of life: the process is stopped, or one of its threads keeps all others from running.
        still: Without any work: it waits for itself, for a lost GPU or a lost disk.
        stuck: Without coming further, however hard it works.
        stop: Without coming further since it was asked to stop.
    """

    start: float = 120.0
    silent: float = 30.0
    still: float = 30.0
    stuck: float = 600.0
    stop: float = 20.0


class Patience:
    """Judges an engine by its beats, while somebody waits for it. Safe to call from several threads."""

    def __init__(self, limits: Limits) -> None:
        """Begins with a process that has not said anything yet."""
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting = 0
        self._greeted = False
        self._silent = 0.0
        self._beat: Beat | None = None
        self._elsewhere = False  # files are tried in another process, which has its own limits
        self._since_stop: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time only while it is waited for: who does not read must not blame the writer."""
        with self._lock:
            if not self._waiting:
                self._silent = 0.0
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def heard(self, event: Frame) -> None:
        """Takes note of a beat, or of an event, which shows that it came further."""
        self._greeted, self._silent = True, 0.0
        if isinstance(event, Beat):
            self._beat = event
            return
        self._beat = None
        self._elsewhere = isinstance(event, Loading) and event.share is None
        if isinstance(event, Done | Failed | Loaded):
            self._since_stop = None

    def stop_asked(self) -> None:
        """Takes note that it was asked to stop."""
        if self._since_stop is None:
            self._since_stop = 0.0

    def verdict(self, seconds: float) -> str:
        """Says what is wrong with it, or nothing while it may only be slow.

        Args:
            seconds: Seconds awake since the last verdict.
        """
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
        if beat.still >= limits.still:
            return f"it did nothing at all for {beat.still:.0f} seconds"
        if beat.quiet >= limits.stuck:
            return f"it came no further for {beat.quiet / 60:.0f} minutes"
        if self._since_stop is not None and min(self._since_stop, beat.quiet) >= limits.stop:
            return f"it did not stop within {self._since_stop:.0f} seconds"
        return ""
