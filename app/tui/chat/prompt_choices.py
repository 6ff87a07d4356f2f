"""Completions of the word that is being typed, in a small list above the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.chat.attach import path_completions
from slipstream.app.tui.chat.slash import MARK, is_command, matching


@dataclass(frozen=True, slots=True)
class Completion:
    """A row of the list."""

    text: str  # text that replaces the word
    shown: str  # name in the row
    about: str = ""  # description in the row
    file: str = ""  # the file that it attaches; empty for none
    whole: bool = False  # whether it is complete, so that Enter sends it at once


def completions(before: str, *, first_line: bool) -> tuple[list[Completion], int]:
    """Lists completions of a line: commands at the beginning of the prompt, files after an ``@``.

    Args:
        before: The line up to the cursor.

    Returns:
        The rows, and the column where the completed word begins.
    """
    if first_line and is_command(before) and " " not in before[1:]:
        found = matching(before[len(MARK) :])
        rows = [
            Completion(f"{MARK}{one.name}" + " " * bool(one.argument), one.usage, one.about, whole=not one.needs)
            for one in found
        ]
        return rows, 0
    start, names = path_completions(before)
    files = [
        Completion(f"@{name.path}", name.path)
        if name.bytes is None
        else Completion(f"@{name.path}", name.path, size(name.bytes), file=name.path)
        for name in names
    ]
    return files, start


class CompletionList(OptionList, can_focus=False):
    """The list of completions; the prompt keeps the focus and forwards keys to it."""

    DEFAULT_CSS = """
    CompletionList {
        display: none;
        height: auto;
        max-height: 8;
        margin: 0 1;
        padding: 0 1;
        border: round $border-blurred;
        border-bottom: none;
        background: $background;
        scrollbar-size-vertical: 1;
    }
    .low CompletionList { max-height: 4; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.start = 0  # column where the completed word begins
        self._choices: list[Completion] = []

    @property
    def open(self) -> bool:
        return bool(self._choices)

    @property
    def chosen(self) -> Completion:
        return self._choices[self.highlighted or 0]

    def offer(self, choices: Sequence[Completion], start: int = 0) -> None:
        """Replaces the rows; without rows, the list closes."""
        self.start = start
        if list(choices) == self._choices:
            return
        self._choices = list(choices)
        self.display = self.open
        width = max((Content(one_line(choice.shown)).cell_length for choice in choices), default=0)
        self.clear_options()
        self.add_options(Option(self._row(choice, width)) for choice in choices)
        self.highlighted = 0 if choices else None

    async def _on_click(self, event: events.Click) -> None:
        """Ignores a click on rows that have just gone."""
        if event.style.meta.get("option", 0) >= self.option_count:
            event.prevent_default()

    def move(self, step: int) -> None:
        """Moves the highlight up (-1) or down (1), and wraps at the ends."""
        self.highlighted = ((self.highlighted or 0) + step) % len(self._choices)

    def _row(self, choice: Completion, width: int) -> Content:
        shown = Content(one_line(choice.shown))
        row = Content.assemble(shown.stylize("bold"), " " * (width - shown.cell_length + 2))
        return row.append(Content(one_line(choice.about)).stylize("$foreground 70%"))
