"""Long text in the prompt, behind a short mark."""

from __future__ import annotations

import re

from slipstream.app.tui.widgets.models_words import size

MOST_LINES = 30
"""Lines from which on a paste is folded: the prompt shows six."""
MOST_CHARACTERS = 4000
"""Characters from which on a paste is folded."""


def is_long(text: str) -> bool:
    """Whether a text is better folded."""
    return len(text) > MOST_CHARACTERS or text.count("\n") >= MOST_LINES


class Folds:
    """Marks in the text of a prompt, each of which stands for a long text.

    They are kept until the program ends, so that undo and an earlier prompt still find theirs.
    """

    def __init__(self) -> None:
        """Begins without any."""
        self._texts: dict[str, str] = {}
        self._marks = re.compile(r"(?!)")  # matches nothing

    def fold(self, text: str, label: str = "") -> str:
        """Makes a mark.

        Args:
            text: What it stands for.
            label: What it says; the size of pasted text if empty.
        """
        lines = text.removesuffix("\n").count("\n") + 1
        label = label or f"pasted {lines:,} lines, {size(len(text.encode('utf-8', 'replace')))}"
        label = label.replace("[", "(").replace("]", ")")
        mark, number = f"[{label}]", 1
        while self._texts.get(mark, text) != text:
            number += 1
            mark = f"[{label}, {number}]"
        self._texts[mark] = text
        self._marks = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        return mark

    def unfold(self, text: str) -> str:
        """Puts what they stand for in the place of all marks."""
        return self._marks.sub(lambda mark: self._texts[mark.group()], text)

    def spans(self, line: str) -> list[tuple[int, int]]:
        """Where the marks of a line begin and end."""
        return [mark.span() for mark in self._marks.finditer(line)]

    def at(self, line: str, column: int) -> tuple[int, int] | None:
        """Begin and end of the mark that a column touches, or None."""
        return next((span for span in self.spans(line) if span[0] <= column <= span[1]), None)
