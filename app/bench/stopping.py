"""Handles Ctrl-C during a long measurement, and keeps the figures so far."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Stopped(Exception):
    """Ctrl-C was pressed; the reply or part that it cut short is not counted."""


def never() -> bool:
    return False


class Stop:
    """Handles Ctrl-C: the first ends the measurement and keeps its figures; the second ends the program.

    Attributes:
        asked: Whether Ctrl-C was pressed.
    """

    def __init__(self, words: str = "bench: stopping, with what was measured; Ctrl-C once more drops it") -> None:
        """Installs no handler yet; ``words`` answer the first Ctrl-C."""
        self.asked = False
        self._words = words
        self._before: Any = None

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Self:
        """Installs the handler, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print(self._words, file=sys.stderr, flush=True)
