"""The model manager's actions on downloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from textual.screen import Screen

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.downloads import name_of
from slipstream.app.tui.models.listing import DOWNLOADS, INSTALLED, Choice, Listing
from slipstream.app.tui.models.repo import RepoScreen
from slipstream.app.tui.parts.dialogs import ConfirmScreen
from slipstream.app.tui.parts.notice import hint, trouble
from slipstream.models.errors import SlipstreamError
from slipstream.models.library.catalog import is_model
from slipstream.models.library.pairing import unserved

if TYPE_CHECKING:
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.library.offers import CatalogOffer, QuantOffer
    from slipstream.models.hub.types import Discarded, QueuedDownload
    from slipstream.models.library.catalog import CatalogFile, CatalogPair
    from slipstream.models.library.records import Installed


class Fetching:
    """Starts, pauses and cancels downloads, which continue while the screen is closed."""

    def __init__(
        self, screen: Screen[Choice | None], listing: Listing, models: ModelsAccess, use: Callable[[Installed], None]
    ) -> None:
        """Starts no download yet.

        Args:
            use: Loads a model that is installed already.
        """
        self._screen, self._listing, self._models, self._use = screen, listing, models, use

    def fetch_recommended(self) -> None:
        """Fetches the selected pair, or uses its model if that is installed."""
        at = self._listing.browser.at
        if at is None:
            return
        offer = self._listing.recommended.offers[at]
        here = self._installed(offer.installed)
        if here:
            self._use(here)
        else:
            self._fetch_pair(offer)

    def _fetch_pair(self, offer: CatalogOffer) -> None:
        """Fetches a pair of the catalogue, without its drafter if the drafter is unsupported."""
        hint(self._screen, "Asking the hub …")
        pair = offer.pair
        if unserved(pair):
            self.fetch_file(pair.target)
        else:
            self._listing.ask(lambda models: models.fetch_pair(pair), self._begun)

    def fetch_file(self, file: CatalogFile) -> None:
        self._listing.ask(lambda models: [models.fetch_file(file)], self._begun)

    def _installed(self, name: str) -> Installed | None:
        return next((model for model in self._listing.installed.models if model.name == name), None)

    def _begun(self, jobs: list[QueuedDownload]) -> None:
        self._listing.look()
        self._listing.go_to(DOWNLOADS)
        if not jobs:
            hint(self._screen, "All of it is here already.")
        else:
            hint(self._screen, f"Fetching {' and '.join(one_line(name_of(job)) for job in jobs)}.")

    # --- the hub --------------------------------------------------------------------------------------------------

    def sort(self) -> None:
        """Switches to the next sort order, and repeats the search."""
        search = self._listing.search
        search.next_sort()
        hint(self._screen, f"Sorted by {'what is new and liked' if search.sort == 'trending' else search.sort}.")
        if search.asked:
            self._listing.search_hub(search.asked)
        self._listing.redraw(search)

    def open_repository(self) -> None:
        """Opens the selected repository."""
        at = self._listing.browser.at
        if at is not None and self._listing.browser.view is self._listing.search:
            repo = self._listing.search.found[at]
            pair = self._pair_of(repo.id)
            screen = RepoScreen(self._models, repo, pair.drafter if pair else None)
            self._screen.app.push_screen(screen, partial(self._fetch_quant, pair))

    def _pair_of(self, repo: str) -> CatalogPair | None:
        """The pair in the catalogue for a repository's model, whose drafter is a usable file; None if there is none."""
        offers = self._listing.recommended.offers
        pairs = [offer.pair for offer in offers if is_model(offer.pair.target, [repo])]
        return next((pair for pair in pairs if pair.drafter and not unserved(pair)), None)

    def _fetch_quant(self, pair: CatalogPair | None, offer: QuantOffer | None) -> None:
        """Fetches a quantization, and the drafter that the catalogue has for it."""
        if offer is None:
            return
        here = self._installed(offer.installed)
        if here:
            self._use(here)
            return

        def fetch(models: ModelManager) -> list[QueuedDownload]:
            jobs = [models.fetch(offer.quant)]
            if pair and pair.drafter and not offer.quant.drafts:
                try:
                    jobs += models.fetch_pair(
                        replace(pair, target=pair.drafter, drafter=None)
                    )  # skips an installed one
                except SlipstreamError as error:  # the model is fetched nevertheless
                    self._screen.call_later(trouble, self._screen, error)
            return jobs

        self._listing.ask(fetch, self._begun)

    # --- downloads ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pauses or resumes the selected download; shows the installed models if it is done."""
        job = self._listing.job
        if job is None:
            return
        if job.state == "done":
            self._listing.go_to(INSTALLED)
        elif job.state in ("queued", "running"):
            self._listing.ask(lambda models: models.pause(job.id), lambda done: self._listing.look())
        else:
            self._listing.ask(lambda models: models.resume(job.id), lambda done: self._listing.look())

    def cancel(self) -> None:
        """Cancels the selected download after confirmation."""
        job = self._listing.job
        if job is None or job.state == "done":
            return
        name = one_line(name_of(job))
        question = ConfirmScreen(
            f"Give up fetching “{name}”?",
            f"{size(job.progress.done)} that have come are removed. A paused download can go on at any time instead.",
            "gives up",
        )

        def cancelled(gone: Discarded) -> None:
            self._listing.look()
            hint(self._screen, f"Gave up {name}; {size(gone.freed)} are free again.")

        def answered(yes: bool | None) -> None:
            if yes:
                self._listing.ask(lambda models: models.cancel(job.id), cancelled)

        self._screen.app.push_screen(question, answered)
