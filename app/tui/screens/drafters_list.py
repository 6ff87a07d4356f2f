"""The drafters screen: what it lists, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.app.drafters.standing import Standing
from slipstream.app.engine.protocol import DrafterOffer, Loaded
from slipstream.app.paths import Paths
from slipstream.app.safe_text import sentence
from slipstream.app.tui.behind import behind
from slipstream.app.tui.figures import rate
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.screens.drafters_work import Work
from slipstream.app.tui.screens.working import WorkingScreen
from slipstream.app.tui.widgets.drafters_view import DraftersView
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


class DraftersList(WorkingScreen[Picked | None]):
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
        facts = (loaded.name, f"plain {rate(loaded.plain_tok_per_s)} tok/s", loaded.device)
        heading = f"Drafters for {' · '.join(facts)}"
        super().__init__(self._view, heading, desk.jobs, lambda: desk.news() or self._trouble)
        self._loaded, self._desk = loaded, desk
        self._trouble = ""

    def on_mount(self) -> None:
        """Begins at the drafter in use, and looks for what is known of all."""
        self.show_work()
        self.browser.rows.highlighted = self._view.find(self._view.current) or 0
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

    def _offer(self) -> DrafterOffer | None:
        at = self.browser.at
        return None if at is None else self._view.offers[at]
