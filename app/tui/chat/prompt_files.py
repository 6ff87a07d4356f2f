"""Folds long pastes and attached files into short marks."""

from __future__ import annotations

import re
from collections.abc import Callable

from textual.widgets import TextArea

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.tui.chat.attach import Attachment, mentioned, path_completions, read_attachment, unattached
from slipstream.app.tui.chat.slash import is_command
from slipstream.app.tui.parts.notice import trouble
from slipstream.models.errors import UsageError

_SECONDS = 8.0  # duration of a toast
MOST_LINES = 30  # lines from which a text is folded; the prompt shows six
MOST_CHARACTERS = 4000  # characters above which a text is folded


def is_long(text: str) -> bool:
    """Whether a text is long enough to be folded."""
    return len(text) > MOST_CHARACTERS or text.count("\n") >= MOST_LINES


class Folds:
    """Maps marks in a prompt to long texts.

    Marks are kept until the program ends, for undo and the history.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._marks = re.compile(r"(?!)")  # matches nothing

    def fold(self, text: str, label: str = "") -> str:
        """Creates a mark for a text.

        Args:
            label: Text of the mark; if empty, the size of the pasted text.
        """
        lines = text.removesuffix("\n").count("\n") + 1
        label = label or f"pasted {plural(lines, 'line')}, {size(len(text.encode('utf-8', 'replace')))}"
        label = label.replace("[", "(").replace("]", ")")
        mark, number = f"[{label}]", 1
        while self._texts.get(mark, text) != text:
            number += 1
            mark = f"[{label}, {number}]"
        self._texts[mark] = text
        self._marks = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        return mark

    def unfold(self, text: str) -> str:
        """Replaces all marks by their texts."""
        return self._marks.sub(lambda mark: self._texts[mark.group()], text)

    def spans(self, line: str) -> list[tuple[int, int]]:
        """Start and end of each mark of a line."""
        return [mark.span() for mark in self._marks.finditer(line)]

    def at(self, line: str, column: int) -> tuple[int, int] | None:
        """Start and end of the mark that a column touches, or None."""
        return next((span for span in self.spans(line) if span[0] <= column <= span[1]), None)


class Files:
    """Reads the files that a prompt names, and replaces each name by a mark."""

    def __init__(self, prompt: TextArea, folds: Folds, attached: Callable[[Attachment], object]) -> None:
        """Attaches nothing yet.

        Args:
            attached: Called with each file that was read.
        """
        self._prompt, self._folds, self._attached = prompt, folds, attached
        self._reported: set[str] = set()  # names that were reported as missing

    def attach(self, name: str, start: int | None = None) -> Attachment:
        """Attaches a text file or an image.

        Args:
            start: The file replaces the text between this column and the cursor; None replaces the whole prompt.

        Raises:
            UsageError: If it cannot be read; the prompt stays unchanged.
        """
        prompt = self._prompt
        read = read_attachment(name)
        mark = self._folds.fold(read.fenced, read.label)
        row, column = prompt.cursor_location
        begin, end = ((0, 0), prompt.document.end) if start is None else ((row, start), (row, column))
        after = prompt.document.get_text_range(end, prompt.document.end)
        prompt.replace(mark if after and not after[0].isalnum() else f"{mark} ", begin, end)
        self._attached(read)
        return read

    def attach_or_report(self, name: str, start: int) -> Attachment | None:
        """Attaches a file; if it cannot be read, shows the error and returns None."""
        try:
            return self.attach(name, start)
        except UsageError as error:
            trouble(self._prompt, error)
            return None

    def attach_mentioned(self) -> bool:
        """Attaches all files that the text mentions; returns False if one cannot be read."""
        prompt = self._prompt
        labels: list[str] = []
        for row in range(prompt.document.line_count):
            at = len(labels)
            for begin, end, name in reversed(mentioned(prompt.document.get_line(row))):
                prompt.move_cursor((row, end))
                read = self.attach_or_report(name, begin)
                if read is None:
                    return False
                labels.insert(at, read.label)
        if labels:
            prompt.notify(f"Attached: {'; '.join(labels)}.", timeout=_SECONDS, markup=False)
        self._report_missing(prompt.text)
        return True

    def attach_ended(self, row: int, column: int) -> None:
        """Attaches the file that is mentioned directly before a space or line end that was just typed."""
        prompt = self._prompt
        line = prompt.document.get_line(row)
        before = line[:column]
        if is_command(prompt.text) or "@" not in before or path_completions(f"{before} ")[1]:  # a name may have spaces
            return
        last = mentioned(before, at_end=True)
        if not last:
            self._report_missing(before.rpartition(" ")[2])
            return
        begin, end, name = last[0]
        cursor_row, cursor_column = prompt.cursor_location
        prompt.move_cursor((row, end))
        self.attach_or_report(name, begin)
        grown = len(prompt.document.get_line(row)) - len(line)
        prompt.move_cursor((cursor_row, cursor_column + grown * (cursor_row == row)))

    def _report_missing(self, text: str) -> None:
        """Reports the names after an ``@`` that look like paths but are not files, each only once."""
        missing = {name: why for name, why in unattached(text) if name not in self._reported}
        self._reported |= missing.keys()
        if missing:
            words = "; ".join(f"@{one_line(name)}: {why}" for name, why in missing.items())
            words = f"{words}; it is sent as text."
            self._prompt.notify(words, severity="warning", timeout=_SECONDS, markup=False)
