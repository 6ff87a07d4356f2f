"""The engine's sign of life, so that a hung engine can be told from a slow one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from slipstream.app.engine.awake import AwakeClock
from slipstream.app.engine.protocol import Beat

EVERY: Final = 1.0
"""Seconds between two beats."""
_WORKS: Final = 0.02  # share of one core; the pulse itself takes far less


class Pulse:
    """Tells, from a thread of its own, how long ago the work came further and the process did anything at all."""

    def __init__(
        self,
        tell: Callable[[Beat], None],
        asked: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], float] | None = None,
    ) -> None:
        """Begins with a process that has just done something.

        Args:
            tell: Sends a beat.
            asked: Whether somebody waits for this process.
            clock: Seconds, for tests.
            work: Seconds of work so far, see ``work_done``.
        """
        self._tell, self._asked, self._work = tell, asked, work or work_done
        self._awake = AwakeClock(2 * EVERY, clock)
        self._signs = self._seen = 0
        self._done = self._work()
        self._quiet = self._still = 0.0

    def sign(self) -> None:
        """Says that the work came further; called by the thread that does it, as often as it likes."""
        self._signs += 1

    def start(self) -> None:
        """Beats from now on, for as long as the process lives."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def beat(self) -> None:
        """Looks what has happened since the last time, and tells it if somebody waits."""
        passed, done, signs = self._awake.passed(), self._work(), self._signs
        further = signs != self._seen or not self._asked()
        works = further or done - self._done > _WORKS * passed
        self._quiet = 0.0 if further else self._quiet + passed
        self._still = 0.0 if works else self._still + passed
        self._seen, self._done = signs, done
        if self._asked():
            self._tell(Beat(self._quiet, self._still))

    def _run(self) -> None:
        while True:
            time.sleep(EVERY)
            self.beat()


def work_done() -> float:
    """What the process has done, in seconds of all its threads; a page or a block from or to a disk counts as a second.

    A large model whose pages come from a slow disk waits more than it computes.
    """
    seconds = time.process_time()
    if sys.platform != "win32":
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds += usage.ru_majflt + usage.ru_inblock + usage.ru_oublock
    return seconds
