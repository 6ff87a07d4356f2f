"""One result of the benchmark, with all its figures."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from slipstream.app.bench.figures import DrafterReport
from slipstream.app.bench.kept import Kept
from slipstream.app.safe_text import one_line
from slipstream.app.tui.widgets.bench_view import bars, figures, remarks
from slipstream.app.tui.widgets.key_bar import KeyBar

MARGIN: Final = 6
"""Columns beside the text: padding and the scroll bar."""
WIDEST: Final = 140


class BenchResult(Screen[None]):
    """Bars, then the table, then what has to be said of them."""

    DEFAULT_CSS = """
    BenchResult VerticalScroll { padding: 1 2 0 2; scrollbar-size-vertical: 1; }
    BenchResult VerticalScroll Static { height: auto; margin: 0 0 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back", key_display="Esc")]

    def __init__(self, kept: Kept, report: DrafterReport) -> None:
        """Keeps what to show."""
        super().__init__()
        self._kept, self._report = kept, report

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        facts = (f"{self._kept.when:%d %B %Y, %H:%M}", one_line(self._report.model), one_line(self._kept.processor))
        yield Static(Content(" · ".join(facts)), classes="machine")
        with VerticalScroll():
            yield Static(id="bars")
            yield Static(id="figures")
            yield Static(remarks(self._report))
        yield KeyBar()

    def on_mount(self) -> None:
        """The arrow keys scroll."""
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        """Writes it for the width there is."""
        width = max(min(self.size.width, WIDEST) - MARGIN, 20)
        self.query_one("#bars", Static).update(bars(self._report, width))
        self.query_one("#figures", Static).update(figures(self._report, width))
