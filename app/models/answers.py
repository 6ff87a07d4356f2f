"""How the commands answer: JSON on standard output, and progress on standard error."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from slipstream.app.tui.widgets import models_words

_STEP: Final = 10
"""Per cent between two lines of progress where no terminal shows it."""


def print_json(value: object) -> None:
    """Prints dataclasses, and lists and dicts of them, as one line of JSON: in ASCII where a terminal would obey it."""
    print(json.dumps(_plain(value), ensure_ascii=sys.stdout.isatty()))


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


class Bar:
    """Shows how far something is, and makes Ctrl-C a wish to stop in order; a second one ends the program at once.

    On a terminal one line is written anew; elsewhere there is a line every ten per cent.
    """

    def __init__(self, doing: str) -> None:
        """Shows nothing yet.

        Args:
            doing: What is being done, such as ``copying``.
        """
        self._doing = doing
        self._tty = sys.stderr.isatty()
        self._shown = 0
        self._width = 0
        self._stopped = False
        self._before: Callable[[int, FrameType | None], Any] | int | None = None

    def __enter__(self) -> Self:
        """Takes over Ctrl-C."""
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        """Gives Ctrl-C back, and clears the line."""
        signal.signal(signal.SIGINT, self._before)
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def cancelled(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stopped

    def bytes(self, done: int, size: int) -> None:
        """Shows how many bytes are done."""
        self.line(f"{self._doing}: {models_words.size(done)} of {models_words.size(size)}", done, size)

    def line(self, text: str, done: int, size: int) -> None:
        """Shows a line and the share that is done."""
        share = 100 * done // max(1, size)
        if self._tty:
            text = f"{text}, {share} %"[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
            sys.stderr.flush()
        elif share >= self._shown + _STEP:
            self._shown = share - share % _STEP
            print(f"slipstream: {text}, {share} %", file=sys.stderr, flush=True)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._stopped = True
