"""The model manager: its keys."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Input

from slipstream.app.safe_text import one_line
from slipstream.app.tui.models import Models
from slipstream.app.tui.screens.dialogs import ConfirmScreen
from slipstream.app.tui.screens.models_keeping import ModelsKeeping
from slipstream.app.tui.screens.models_list import INSTALLED, NAMES, RECOMMENDED, SEARCH, Choice
from slipstream.app.tui.screens.models_pairs import PairsScreen
from slipstream.app.tui.screens.models_repo import RepoScreen
from slipstream.app.tui.widgets.models_browser import Browser
from slipstream.app.tui.widgets.models_downloads import name_of
from slipstream.app.tui.widgets.models_words import size
from slipstream.models.catalog import is_model
from slipstream.models.errors import SlipstreamError
from slipstream.models.pairing import unserved

if TYPE_CHECKING:
    from slipstream.app.engine.requests import Load
    from slipstream.app.models.manager import CatalogOffer, QuantOffer
    from slipstream.models.catalog import CatalogPair
    from slipstream.models.download_types import Discarded, Job
    from slipstream.models.pairing import PairOffer
    from slipstream.models.store_types import Installed


class ModelsScreen(ModelsKeeping):
    """What is here, what is worth having, what there is, and what is on its way. Closes with the model to use."""

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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers on each tab what can be done there."""
        installed = self._model() is not None
        offered = {
            "use": installed,
            "pairs": installed and self.tab != SEARCH,
            "verify": installed and self.tab != SEARCH,
            "remove": installed and self.tab != SEARCH,
            "undo": self.tab == INSTALLED,
            "import": self.tab == INSTALLED,
            "fetch_or_use": self.tab == RECOMMENDED and self.browser.at is not None,
            "sort": self.tab == SEARCH and not self._offline,
            "pause": self._job() is not None,
            "cancel": self._job() is not None,
            "search": self.tab != SEARCH,
        }
        return offered.get(action, True)

    # --- moving ---------------------------------------------------------------------------------------------------

    def action_tab(self, at: int) -> None:
        """Goes to a tab."""
        self.go_to(at)

    def action_next(self, step: int) -> None:
        """Goes to the tab beside this one."""
        self.go_to((self.tab + step) % len(NAMES))

    def action_search(self) -> None:
        """Goes to the search."""
        self.go_to(SEARCH)

    @on(Browser.Chosen)
    async def _chosen(self) -> None:
        """A second click does what Enter does."""
        search = "use" if self._offline else "open"
        await self.run_action(("use", "fetch_or_use", search, "pause")[self.tab])

    # --- using ----------------------------------------------------------------------------------------------------

    def action_use(self) -> None:
        """Goes on with the model under the bar."""
        if model := self._model():
            self._use(model)

    def _use(self, model: Installed, pair: PairOffer | None = None) -> None:
        name = one_line(model.name)
        if not model.usable:
            reason = one_line(model.problem) or "it only drafts for other models."
            self._say(f"{name} cannot chat: {reason}")
            return
        if model.fingerprint and model.fingerprint == self._installed.in_use and pair is None:
            self.dismiss(None)  # the chat has it
            return

        def ready(load: Load) -> None:
            if self.is_current:
                self.dismiss(Choice(load, model))

        self._behind(lambda models: models.load_of(model, pair), ready)

    def action_pairs(self) -> None:
        """Lists all drafters of the model under the bar."""
        if model := self._model():
            facts = self._installed.facts.get(model.name)
            if facts and facts.pairs:
                self._show_pairs(model, facts.pairs)
            else:
                self._behind(lambda models: models.pairs(model.name), partial(self._show_pairs, model))

    def _show_pairs(self, model: Installed, pairs: list[PairOffer]) -> None:
        def chosen(pair: PairOffer | None) -> None:
            if pair and pair.fetch:
                file = pair.fetch
                self._behind(lambda models: [models.fetch_file(file)], self._fetching)
            elif pair:
                self._use(model, pair)

        self.app.push_screen(PairsScreen(model.name, pairs), chosen)

    # --- fetching -------------------------------------------------------------------------------------------------

    def action_fetch_or_use(self) -> None:
        """Fetches a pair of the catalogue, or uses its model where that is here already."""
        at = self.browser.at
        if at is None:
            return
        offer = self._recommended.offers[at]
        here = next((model for model in self._installed.models if offer.installed == model.name), None)
        if here:
            self._use(here)
        elif self._fits(offer):
            self.fetch_pair(offer)

    def _fits(self, offer: CatalogOffer) -> bool:
        """Whether it can run here at all; says why not."""
        if offer.fit and offer.fit.verdict == "too big":
            self._say(f"It is too big for this machine: {offer.fit.why}")
            return False
        return True

    def fetch_pair(self, offer: CatalogOffer) -> None:
        """Fetches a pair of the catalogue; the model alone where its drafter could not serve it."""
        self._say("Asking the hub …")
        pair = offer.pair
        if unserved(pair):
            self._behind(lambda models: [models.fetch_file(pair.target)], self._fetching)
        else:
            self._behind(lambda models: models.fetch_pair(pair), self._fetching)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        """Asks the hub for what was typed, or opens what it found; uses what is here while there is no hub."""
        text = self.line.value.strip()
        if self._offline:
            self.action_use()
        elif text and text != self._search.asked:
            self._search_hub(text)
        else:
            self.action_open()

    def action_sort(self) -> None:
        """Sorts what the hub finds in another way."""
        self._search.next_sort()
        self._say(f"Sorted by {'what is new and liked' if self._search.sort == 'trending' else self._search.sort}.")
        if self._search.asked:
            self._search_hub(self._search.asked)
        self._redraw(self._search)

    def action_open(self) -> None:
        """Opens a repository."""
        at = self.browser.at
        if at is not None and self.browser.view is self._search:
            repo = self._search.found[at]
            pair = self._pair_of(repo.id)
            screen = RepoScreen(self._desk, repo, pair.drafter if pair else None)
            self.app.push_screen(screen, partial(self._fetch_quant, pair))

    def _pair_of(self, repo: str) -> CatalogPair | None:
        """The pair of the catalogue whose target is this model, whoever published it, and whose drafter is a file."""
        pairs = [offer.pair for offer in self._recommended.offers if is_model(offer.pair.target, [repo])]
        return next((pair for pair in pairs if pair.drafter and not unserved(pair)), None)

    def _fetch_quant(self, pair: CatalogPair | None, offer: QuantOffer | None) -> None:
        """Fetches a quantization, and the drafter that the catalogue has for it."""
        if offer is None:
            return
        here = next((model for model in self._installed.models if offer.installed == model.name), None)
        if here:
            self._use(here)
            return

        def fetch(models: Models) -> list[Job]:
            jobs = [models.fetch(offer.quant)]
            if pair and pair.drafter and not offer.quant.drafts:
                try:
                    jobs += models.fetch_pair(replace(pair, target=pair.drafter, drafter=None))  # not if it is here
                except SlipstreamError as error:  # the model comes all the same
                    self.call_later(self._fail, error)
            return jobs

        self._behind(fetch, self._fetching)

    # --- downloads ------------------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Pauses the download under the bar, or goes on with it."""
        job = self._job()
        if job is None:
            return
        if job.state == "done":
            self.go_to(INSTALLED)
        elif job.state in ("queued", "running"):
            self._behind(lambda models: models.pause(job.id), lambda done: self._look())
        else:
            self._behind(lambda models: models.resume(job.id), lambda done: self._look())

    def action_cancel(self) -> None:
        """Asks, then gives a download up."""
        job = self._job()
        if job is None or job.state == "done":
            return
        name = one_line(name_of(job))
        question = ConfirmScreen(
            f"Give up fetching “{name}”?",
            f"{size(job.progress.done)} that have come are removed. A paused download can go on at any time instead.",
            "gives up",
        )

        def cancelled(gone: Discarded) -> None:
            self._look()
            self._say(f"Gave up {name}; {size(gone.freed)} are free again.")

        def answered(yes: bool | None) -> None:
            if yes:
                self._behind(lambda models: models.cancel(job.id), cancelled)

        self.app.push_screen(question, answered)
