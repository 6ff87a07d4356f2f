"""The screen of the model manager, and its keys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.models.actions import ModelActions
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.installed import InstalledView
from slipstream.app.tui.models.listing import INSTALLED, NAMES, RECOMMENDED, SEARCH, Listing, ModelChoice, TabNames
from slipstream.app.tui.models.pairs import PairsScreen
from slipstream.app.tui.parts.browser import Browser, BrowsingScreen

if TYPE_CHECKING:
    from slipstream.app.protocol.requests import Load
    from slipstream.models.library.pairing import PairOffer
    from slipstream.models.library.records import InstalledModel


class ModelsScreen(BrowsingScreen[ModelChoice | None]):
    """Lists installed and recommended models, search results and downloads; closes with the model to use.

    The chat reuses one instance.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "use", "Use"),
        Binding("enter", "fetch_or_use", "Fetch"),
        Binding("enter", "pause", "Pause or go on"),
        Binding("ctrl+s", "sort", "Sort"),
        Binding("d", "pairs", "Drafters"),
        Binding("v", "verify", "Verify"),
        Binding("x,delete", "remove", "Remove", key_display="x"),
        Binding("x,delete", "cancel", "Cancel", key_display="x"),
        Binding("u", "undo", "Undo"),
        Binding("i", "import", "Import"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("tab", "next(1)", "Next", show=False),
        Binding("shift+tab", "next(-1)", "Last", show=False),
        Binding("right", "next(1)", "Next", show=False),
        Binding("left", "next(-1)", "Last", show=False),
        *(Binding(str(at + 1), f"tab({at})", name, show=False) for at, name in enumerate(NAMES)),
        Binding("escape,ctrl+l", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, models: ModelsAccess) -> None:
        installed = InstalledView()
        super().__init__(installed)
        self.listing = Listing(self, self.browser, installed, models)
        self._models = models
        self._actions = ModelActions(self, self.listing, models, self._use)

    def compose(self) -> ComposeResult:
        yield self.listing.machine
        yield self.listing.tabs
        yield self.listing.line
        yield self.browser
        yield KeyBar()

    def on_mount(self) -> None:
        self.listing.begin()

    def on_screen_resume(self) -> None:
        """Reads the machines and installed models again: they may have changed since the screen was last open."""
        self.listing.look_at_machines()
        self.listing.list_installed()
        self.browser.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        listing, tab = self.listing, self.listing.tab
        installed, job = listing.model is not None, listing.job is not None
        offered = {
            "use": installed,
            **dict.fromkeys(("pairs", "verify", "remove"), installed and tab != SEARCH),
            **dict.fromkeys(("undo", "import"), tab == INSTALLED),
            "fetch_or_use": tab == RECOMMENDED and self.browser.at is not None,
            "sort": tab == SEARCH and not listing.offline,
            **dict.fromkeys(("pause", "cancel"), job),
            "search": tab != SEARCH or not listing.line.has_focus,
        }
        return offered.get(action, True)

    # --- navigation -----------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        if self._models.stop_waiting():
            return
        if self.listing.line.has_focus:
            self.listing.leave_line()
        else:
            super().action_leave()

    @on(TabNames.Switched)
    def _tab_chosen(self, message: TabNames.Switched) -> None:
        self.listing.go_to(message.at)

    def action_tab(self, at: int) -> None:
        self.listing.go_to(at)

    def action_next(self, step: int) -> None:
        self.listing.go_to((self.listing.tab + step) % len(NAMES))

    def action_search(self) -> None:
        self.listing.go_to(SEARCH)

    @on(Input.Changed)
    def _typed(self) -> None:
        self.listing.narrow()

    @on(Input.Submitted)
    def _submitted(self) -> None:
        text = self.listing.line.value.strip()
        if self.listing.offline:
            self.action_use()
        elif text and text != self.listing.search.asked:
            self.listing.search_hub(text)
        else:
            self._actions.open_repository()

    @on(Browser.Chosen)
    def _chosen(self) -> None:
        if self.listing.tab == INSTALLED or (self.listing.tab == SEARCH and self.listing.offline):
            self.action_use()
        elif self.listing.tab == RECOMMENDED:
            self.action_fetch_or_use()
        elif self.listing.tab == SEARCH:
            self._actions.open_repository()
        else:
            self.action_pause()

    # --- actions --------------------------------------------------------------------------------------------------

    def action_use(self) -> None:
        if model := self.listing.model:
            self._use(model)

    def _use(self, model: InstalledModel, pair: PairOffer | None = None) -> None:
        name = one_line(model.name)
        if not model.usable:
            reason = one_line(model.problem) or "it only drafts for other models."
            self.say(f"{name} cannot chat: {reason}")
            return
        if model.fingerprint and model.fingerprint == self.listing.installed.in_use and pair is None:
            self.dismiss(None)  # the chat uses it already
            return

        def ready(load: Load) -> None:
            if self.is_current:
                self.dismiss(ModelChoice(load, model))

        self.listing.ask(lambda models: models.load_of(model, pair), ready)

    def action_pairs(self) -> None:
        if model := self.listing.model:
            facts = self.listing.installed.facts.get(model.name)
            if facts and facts.pairs:
                self._show_pairs(model, facts.pairs)
            else:
                self.listing.ask(lambda models: models.pairs(model.name), partial(self._show_pairs, model))

    def _show_pairs(self, model: InstalledModel, pairs: list[PairOffer]) -> None:
        def chosen(pair: PairOffer | None) -> None:
            if pair and pair.fetch:
                self._actions.fetch_file(pair.fetch)
            elif pair:
                self._use(model, pair)

        self.app.push_screen(PairsScreen(model.name, pairs), chosen)

    def action_verify(self) -> None:
        self._actions.verify()

    def action_remove(self) -> None:
        self._actions.remove()

    def action_undo(self) -> None:
        self._actions.undo()

    def action_import(self) -> None:
        self._actions.ask_import()

    def action_fetch_or_use(self) -> None:
        self._actions.fetch_recommended()

    def action_sort(self) -> None:
        self._actions.sort()

    def action_pause(self) -> None:
        self._actions.pause()

    def action_cancel(self) -> None:
        self._actions.cancel()
