"""Time as a watchdog has to count it."""

from __future__ import annotations

import time
from collections.abc import Callable


class AwakeClock:
    """Counts the seconds between looks, without those that the machine slept through or the process was stopped for.

    Who looks once a second and finds that an hour has passed was asleep: nobody else did anything in that hour either.
    """

    def __init__(self, longest: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins to count.

        Args:
            longest: Seconds between two looks; more than that was sleep.
            clock: Seconds, for tests.
        """
        self._longest, self._clock = longest, clock
        self._last = clock()

    def passed(self) -> float:
        """Seconds awake since the last look."""
        now = self._clock()
        seconds, self._last = min(now - self._last, self._longest), now
        return seconds
