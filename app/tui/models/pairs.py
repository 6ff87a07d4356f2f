"""The dialog of all drafters for a model."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line
from slipstream.app.speed import times
from slipstream.app.tui.parts.browser import text
from slipstream.app.tui.parts.dialogs import Dialog
from slipstream.app.tui.parts.key_bar import sheet_keys
from slipstream.app.tui.parts.notice import hint

if TYPE_CHECKING:
    from slipstream.models.library.pairing import PairOffer

BORDERS = 8
"""Columns of border, padding and scroll bar."""
WIDTH = 100
READY, FETCH, CANNOT = "● ", "↓ ", "✗ "


class PairsScreen(Dialog["PairOffer | None"]):
    """Lists drafters. Closes with the one to use or to fetch, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,d", "dismiss", "Back")]

    def __init__(self, model: str, pairs: Sequence[PairOffer]) -> None:
        """Lists the drafters.

        Args:
            model: Name of the target.
            pairs: All drafters, best first.
        """
        super().__init__()
        self._model = model
        self._pairs = pairs

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet", id="pairs") as sheet:
            sheet.border_title = Content(f"Drafters for {one_line(self._model)}")
            sheet.border_subtitle = sheet_keys("Enter uses or fetches", "Esc back")
            yield OptionList(*(Option("") for _ in self._pairs), markup=False)
            legend = "● ready   ↓ Enter fetches it   ✗ not supported" if self._pairs else ""
            nothing = "No drafter is known for this model. lookup drafts for every model, from its own text."
            yield Static(Content(legend or nothing), classes="detail")

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.display = bool(self._pairs)
        options.highlighted = 0 if self._pairs else None
        options.focus()

    def on_resize(self) -> None:
        """Wraps the rows at the new width."""
        options = self.query_one(OptionList)
        room = max(min(self.size.width, WIDTH) - BORDERS, 16)
        for at, pair in enumerate(self._pairs):
            options.replace_option_prompt_at_index(at, _row(pair, room))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        pair = self._pairs[event.option_index]
        if pair.why_not:
            hint(self, f"{one_line(pair.name)} cannot guess for this model.")
        else:
            self.dismiss(pair)


def _row(pair: PairOffer, room: int) -> Content:
    """Name, method and gain, then why the drafter is usable or not, and an alternative."""
    mark, colour = (CANNOT, "$error") if pair.why_not else (READY, "$success") if pair.ready else (FETCH, "$primary")
    name = text(pair.name, "" if pair.why_not else "bold")
    facts = [one_line(pair.method)]
    if pair.gain:
        facts.append(f"{times(pair.gain)} measured here")
    if pair.fetch:
        facts.append(f"fetch {size(pair.size)}" if pair.size else "fetch it")
    elif pair.size:
        facts.append(size(pair.size))
    first = Content(mark).stylize(colour).append(name).append(Content(f" · {' · '.join(facts)}"))
    reasons = [pair.why_not, pair.instead, "" if pair.why_not else pair.source, pair.note]
    lines = [f"  {line}" for reason in reasons if reason for line in wrap(one_line(reason), room - 2)]
    row = first.append(Content("".join(f"\n{line}" for line in lines)).stylize("$foreground 65%"))
    return row.stylize("$foreground 55%", len(mark)) if pair.why_not else row
