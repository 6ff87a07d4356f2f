"""All drafters: which serve the model, what they do, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from slipstream.app.engine.protocol import DrafterOffer
from slipstream.app.safe_text import one_line

MARK = "● "
BORDERS = 8
"""Columns around the list: border, padding, and its scroll bar."""


class DraftersScreen(ModalScreen[str | None]):
    """A list of drafters. Closes with the name of the one to use, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+d", "dismiss", "Back")]

    def __init__(self, offers: Sequence[DrafterOffer], current: str) -> None:
        """Keeps what to list.

        Args:
            offers: All drafters.
            current: The one that drafts the next reply.
        """
        super().__init__()
        self._offers = offers
        self._current = current

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="sheet", id="drafters") as sheet:
            sheet.border_title = "Drafters"
            sheet.border_subtitle = "Enter chooses · Esc back"
            yield OptionList(*(Option("", id=offer.name) for offer in self._offers), markup=False)

    def on_mount(self) -> None:
        """Begins at the drafter in use."""
        options = self.query_one(OptionList)
        options.highlighted = next((at for at, offer in enumerate(self._offers) if offer.name == self._current), 0)
        options.focus()

    def on_resize(self) -> None:
        """Writes the rows for the width there is."""
        options = self.query_one(OptionList)
        for offer in self._offers:
            options.replace_option_prompt(offer.name, self._row(offer))

    def _row(self, offer: DrafterOffer) -> Content:
        """The name, and beside it what the drafter does or why it cannot."""
        width = max(len(one_line(other.name)) for other in self._offers)
        indent = len(MARK) + width + 2
        words = one_line(offer.about if offer.usable else offer.why_not)
        room = max(min(self.size.width, 100) - BORDERS - indent, 12)
        text = f"\n{' ' * indent}".join(wrap(words, room))
        mark = Content(MARK if offer.name == self._current else " " * len(MARK)).stylize("$primary")
        name = Content(f"{one_line(offer.name):<{width}}  ")
        row = mark.append(name.stylize("bold") if offer.usable else name).append(Content(text))
        return row if offer.usable else row.stylize("$foreground 45%")

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        offer = self._offers[event.option_index]
        if offer.usable:
            self.dismiss(offer.name)
        else:
            self.app.clear_notifications()
            self.notify(f"{one_line(offer.name)} cannot draft for this model.", timeout=3, markup=False)
