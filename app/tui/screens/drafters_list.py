"""The drafters screen: what it lists, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from slipstream.app.drafters.standing import Standing
from slipstream.app.engine.protocol import DrafterOffer, Loaded
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line, sentence
from slipstream.app.tui.behind import behind
from slipstream.app.tui.figures import rate
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.screens.browsing import BrowsingScreen
from slipstream.app.tui.screens.drafters_work import Work
from slipstream.app.tui.widgets.drafters_view import DraftersView
from slipstream.app.tui.widgets.key_bar import KeyBar
from slipstream.models.errors import SlipstreamError


@dataclass(frozen=True, slots=True)
class Picked:
    """What to go on with.

    Attributes:
        name: The drafter.
        load: Whether the model is to be loaded again, with what is new.
    """

    name: str
    load: bool = False


@dataclass(frozen=True, slots=True)
class Desk:
    """What the screen needs of the chat.

    Attributes:
        model: The model, as commands name it.
        file: Its file.
        jobs: What goes on beside the chat.
        begin: Begins work, which goes on while the screen is closed.
        news: What came of the last work; empty if there was none.
        fresh: Whether something is here that the loaded model knows nothing of.
    """

    model: str
    file: Path
    jobs: Jobs
    begin: Callable[[Work], None]
    news: Callable[[], str]
    fresh: Callable[[], bool]


class DraftersList(BrowsingScreen[Picked | None]):
    """Lists drafters; what can be done with them is ``DraftersScreen``'s."""

    def __init__(self, offers: Sequence[DrafterOffer], current: str, loaded: Loaded, desk: Desk) -> None:
        """Keeps what to list.

        Args:
            offers: All drafters.
            current: The one that drafts the next reply.
            loaded: The model.
            desk: The chat.
        """
        self._view = DraftersView(offers, current, loaded.plain_tok_per_s)
        super().__init__(self._view)
        self._loaded, self._desk = loaded, desk
        self._trouble = ""

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        loaded = self._loaded
        facts = (one_line(loaded.name), f"plain {rate(loaded.plain_tok_per_s)} tok/s", one_line(loaded.device))
        yield Static(Content(f"Drafters for {' · '.join(facts)}"), classes="machine")
        yield self.browser
        yield KeyBar()

    def on_mount(self) -> None:
        """Begins at the drafter in use, and looks for what is known of all."""
        self.browser.rows.focus()
        self.show_work()
        self.browser.rows.highlighted = self._view.find(self._view.current) or 0
        self.watch(self.browser.rows, "highlighted", self.refresh_bindings, init=False)
        self.look()

    # --- what is known --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Finds out anew what is known of the drafters."""
        file = self._desk.file

        def find() -> Standing:
            from slipstream.app.drafters.looking import standing  # it loads so much that the screen would wait

            return standing(file, Paths.default())

        behind(self, find, self._known, self._unknown)

    def _known(self, found: Standing) -> None:
        self._view.standing, self._trouble = found, found.trouble
        self.show_work()

    def _unknown(self, error: SlipstreamError) -> None:
        self._known(Standing(trouble=f"{sentence(error.title)} {error.hint}"))

    def show_work(self) -> None:
        """Shows how far the work is, and what came of it."""
        job, news = self._desk.jobs.job, self._desk.news()
        self._view.note = str(job) if job else news or self._trouble
        self.browser.draw()
        self.refresh_bindings()

    def _offer(self) -> DrafterOffer | None:
        at = self.browser.at
        return None if at is None else self._view.offers[at]
