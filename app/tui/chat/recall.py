"""The dialog that searches the prompts of all chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.parts.dialogs import Dialog
from slipstream.app.tui.parts.key_bar import sheet_keys

MOST_LISTED = 200  # maximum prompts in the list; more search words find older ones
_SHOWN = 300


class RecallScreen(Dialog[str | None]):
    """Filters prompts by the typed words. Closes with the chosen prompt, or None."""

    DEFAULT_CSS = """
    RecallScreen #recall { width: 100; height: 80%; }
    RecallScreen OptionList {
        height: 1fr; margin: 1 0 0 0; padding: 0; border: none; background: transparent; scrollbar-size-vertical: 1;
    }
    RecallScreen OptionList > .option-list--option { text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back"),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down,ctrl+r", "move(1)", show=False, priority=True),
        Binding("pageup", "move(-10)", show=False, priority=True),
        Binding("pagedown", "move(10)", show=False, priority=True),
    ]

    def __init__(self, prompts: Sequence[str]) -> None:
        """Prepares the search.

        Args:
            prompts: All prompts, oldest first.
        """
        super().__init__()
        self._prompts = list(dict.fromkeys(reversed(prompts)))  # without duplicates, newest first
        self._folded = [prompt.casefold() for prompt in self._prompts]
        self.found: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet", id="recall") as sheet:
            sheet.border_title = "Earlier prompts"
            sheet.border_subtitle = sheet_keys("Enter takes it", "Esc back")
            yield Input(placeholder="type to search", max_length=1000)
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self._list("")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, text: str) -> None:
        words = text.casefold().split()
        both = zip(self._prompts, self._folded, strict=True)
        fits = [prompt for prompt, folded in both if all(word in folded for word in words)]
        self.found = fits[:MOST_LISTED]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(_row(prompt, words)) for prompt in self.found)
        options.highlighted = 0 if self.found else None
        sheet = self.query_one("#recall", Vertical)
        sheet.border_title = f"Earlier prompts · {len(fits):,} of {len(self._prompts):,}"

    def action_move(self, step: int) -> None:
        """Moves the selection to older (positive) or newer prompts."""
        options = self.query_one(OptionList)
        if self.found:
            options.highlighted = min(max((options.highlighted or 0) + step, 0), len(self.found) - 1)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        at = self.query_one(OptionList).highlighted
        self.dismiss(None if at is None else self.found[at])

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self.found[event.option_index])


def _row(prompt: str, words: Sequence[str]) -> Content:
    """One line of a prompt, from shortly before the first match."""
    line = one_line(prompt[: 100 * _SHOWN])
    folded = line.casefold()
    first = min((place for word in words if (place := folded.find(word)) >= 0), default=0)
    start = 0 if first < _SHOWN // 10 else first - 10
    row = Content(("…" if start else "") + line[start : start + _SHOWN])
    for word in words:
        place = row.plain.casefold().find(word)
        if place >= 0:
            row = row.stylize("bold $primary", place, place + len(word))
    return row
