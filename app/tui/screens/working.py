"""A screen with a list, and with work that goes on beside the chat: how far it is, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from slipstream.app.safe_text import one_line
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.screens.browsing import BrowsingScreen
from slipstream.app.tui.widgets.key_bar import KeyBar
from slipstream.app.tui.widgets.models_view import View

T = TypeVar("T")


class WorkingScreen(BrowsingScreen[T]):
    """What the drafters and the benchmarks have in common; the work goes on while the screen is closed."""

    def __init__(self, view: View, heading: str, jobs: Jobs, news: Callable[[], str]) -> None:
        """Keeps what to show.

        Args:
            view: The list.
            heading: What it is a list of.
            jobs: What goes on beside the chat.
            news: What came of the last work; empty if there was none.
        """
        super().__init__(view)
        self._heading, self._jobs, self._news = heading, jobs, news

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(Content(one_line(self._heading)), classes="machine")
        yield self.browser
        yield KeyBar()

    def on_mount(self) -> None:
        """Begins, after whatever a kind of it does on mounting."""
        self.browser.rows.focus()
        self.show_work()
        self.watch(self.browser.rows, "highlighted", self.refresh_bindings, init=False)

    def show_work(self) -> None:
        """Shows how far the work is, and what came of it."""
        job = self._jobs.job
        self.browser.view.note = str(job) if job else self._news()
        self.browser.draw()
        self.refresh_bindings()
