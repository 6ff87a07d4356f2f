"""Prints a reply: the answer on standard output; what the model thinks on standard error, if that is a terminal."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from slipstream.app.engine.thinking import Thinking, begins_inside
from slipstream.app.safe_text import MOST_MARKS, clean

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerPrinter:
    """Prints one reply as it comes. A pipe gets the answer alone, byte for byte; a terminal gets it cleaned."""

    def __init__(self) -> None:
        """Begins a reply."""
        self._mind: Thinking | None = None
        self._before = ""  # as much of the answer's end as the filter looks at
        self._thoughts = ""  # the same of the thoughts
        self._styled = not os.environ.get("NO_COLOR")

    def take(self, text: str, thought: int) -> None:
        """Takes what a step wrote.

        Args:
            text: New text.
            thought: Tokens of the thinking part so far.
        """
        if not text:
            return
        if self._mind is None:
            self._mind = Thinking(begins_inside(text, thought))
        self._print(*self._mind.feed(text))

    def finish(self) -> None:
        """Prints what was held back, and ends the line."""
        if self._mind:
            self._print(*self._mind.finish())
        self._end_thoughts()
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _print(self, thoughts: str, answer: str) -> None:
        if thoughts and sys.stderr.isatty():
            thoughts = thoughts if self._thoughts else thoughts.lstrip()
            words = clean(thoughts, self._thoughts)
            _write(sys.stderr, f"{_DIM}{words}{_PLAIN}" if self._styled and words else words)
            self._thoughts = (self._thoughts + thoughts)[-MOST_MARKS:]
        if answer:
            self._end_thoughts()
            _write(sys.stdout, clean(answer, self._before) if sys.stdout.isatty() else answer)
            self._before = (self._before + answer)[-MOST_MARKS:]

    def _end_thoughts(self) -> None:
        if self._thoughts:
            _write(sys.stderr, "\n" if self._thoughts.endswith("\n") else "\n\n")
            self._thoughts = ""


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
