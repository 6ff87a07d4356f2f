"""The model manager: its tabs, and what they list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from slipstream.app.engine.requests import Load
from slipstream.app.safe_text import one_line, sentence
from slipstream.app.tui.behind import behind
from slipstream.app.tui.models import Desk, Models
from slipstream.app.tui.screens.browsing import BrowsingScreen
from slipstream.app.tui.widgets.key_bar import KeyBar
from slipstream.app.tui.widgets.models_downloads import DownloadsView, name_of
from slipstream.app.tui.widgets.models_installed import Facts, InstalledView
from slipstream.app.tui.widgets.models_machine import Machine
from slipstream.app.tui.widgets.models_recommended import RecommendedView
from slipstream.app.tui.widgets.models_search import SearchLine, SearchView
from slipstream.app.tui.widgets.models_tabs import TabNames
from slipstream.app.tui.widgets.models_view import View
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.models.manager import CatalogOffer
    from slipstream.models.download_types import Job
    from slipstream.models.hub_types import RepoSummary
    from slipstream.models.runtime.devices import Device
    from slipstream.models.store_types import Installed

T = TypeVar("T")
INSTALLED, RECOMMENDED, SEARCH, DOWNLOADS = range(4)
NAMES = ("Installed", "Recommended", "Search", "Downloads")
SHORT = ("Here", "Best", "Find", "Fetch")
LOOK_EVERY = 0.25
"""Seconds between two looks at the downloads."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The model to go on with.

    Attributes:
        load: What loads it.
        model: The model.
    """

    load: Load
    model: Installed


class ModelsList(BrowsingScreen[Choice | None]):
    """Lists models; what can be done with them is ``ModelsScreen``'s. It is kept while the chat runs."""

    def __init__(self, desk: Desk) -> None:
        """Keeps who knows the models; nothing is asked before the screen is up."""
        self._installed = InstalledView()
        super().__init__(self._installed)
        self._desk = desk
        self._recommended = RecommendedView()
        self._search = SearchView()
        self._downloads = DownloadsView()
        self._here = InstalledView()  # what the search lists while it is offline
        self._offline = False
        self._done: set[str] = set()  # downloads that have ended
        self._asking_facts = False
        self._looking = False
        self._keys_for: tuple[int, View, bool] | None = None  # what the footer was written for
        self.tabs = TabNames(NAMES, SHORT)
        self.line = SearchLine()
        self._machine = Machine(classes="machine")

    # --- what is seen ---------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self._machine
        yield self.tabs
        yield self.line
        yield self.browser
        yield KeyBar()

    def on_mount(self) -> None:
        """Looks at the machine, once, and at the downloads from now on."""
        self.browser.rows.focus()
        self._behind(lambda models: models.devices(), self._machine_known)
        self._behind(lambda models: models.offers(), self._offers_came)
        self.set_interval(LOOK_EVERY, self._look)
        self._look()
        self.go_to(INSTALLED)

    def on_screen_resume(self) -> None:
        """Lists what is here now: it may have changed since the screen was last open."""
        self._list_installed()
        self.browser.draw()

    def _machine_known(self, devices: list[Device]) -> None:
        self._machine.devices = tuple(devices)

    def in_use(self, fingerprint: str) -> None:
        """Marks the model that the chat has."""
        self._installed.in_use = self._here.in_use = fingerprint

    @property
    def tab(self) -> int:
        """The tab that is shown."""
        return self.tabs.current

    def go_to(self, tab: int) -> None:
        """Shows a tab."""
        self.tabs.current = tab
        self.line.display = tab == SEARCH
        here = self._here if self._offline else self._search
        views: tuple[View, ...] = (self._installed, self._recommended, here, self._downloads)
        self.browser.rows.can_focus = tab != SEARCH  # typing searches
        if tab == SEARCH:
            self.line.placeholder = "Offline: only what is here" if self._offline else "Search the hub"
            self.line.focus()
        else:
            self.browser.rows.focus()
        self._filter()
        self.browser.show(views[tab])
        self._refresh_keys()

    @on(TabNames.Chosen)
    def _tab_chosen(self, message: TabNames.Chosen) -> None:
        self.go_to(message.at)

    @on(Input.Changed)
    def _filter(self) -> None:
        """Narrows what is here to what was typed, while there is no hub to ask."""
        words = self.line.value.casefold().split()
        names = [(model, f"{model.name} {model.repo}".casefold()) for model in self._installed.models]
        self._here.models = [model for model, name in names if all(word in name for word in words)]
        self._here.ready = True
        self._here.error = "Offline: the hub is not asked. These models are here." if self._offline else ""
        if self.browser.view is self._here:
            self.browser.draw()

    def _redraw(self, view: View) -> None:
        if self.browser.view is view:
            self.browser.draw()
            self._refresh_keys()

    def _refresh_keys(self) -> None:
        """Writes the footer anew where other keys can be used now; that costs too much to do it at every look."""
        now = (self.tab, self.browser.view, self.browser.at is None)
        if now != self._keys_for:
            self._keys_for = now
            self.refresh_bindings()

    # --- what is found out ----------------------------------------------------------------------------------------

    def _behind(
        self,
        what: Callable[[Models], T],
        then: Callable[[T], object],
        failed: Callable[[SlipstreamError], object] | None = None,
    ) -> None:
        """Asks the manager in a thread."""
        behind(self, lambda: what(self._desk.open()), then, failed or self._fail)

    def _list_installed(self) -> None:
        self._behind(lambda models: models.installed(), self._installed_came, partial(self._no_list, self._installed))

    def _installed_came(self, models: list[Installed]) -> None:
        if models != self._installed.models:  # another model may draft for those that were here
            self._installed.facts.clear()
        self._installed.models = models
        self._here.facts = self._installed.facts
        self._installed.ready, self._installed.error = True, ""
        self._count()
        self._filter()
        self._redraw(self._installed)
        self._ask_facts()

    def _offers_came(self, offers: list[CatalogOffer]) -> None:
        self._recommended.offers = offers
        self._recommended.ready, self._recommended.error = True, ""
        self._redraw(self._recommended)

    def _no_list(self, view: View, error: SlipstreamError) -> None:
        view.ready = True
        view.error = f"{sentence(error.title)}\n{error.hint}"
        self._redraw(view)

    def _ask_facts(self) -> None:
        """Finds out about one model after the other, the one under the bar first."""
        unknown = [model for model in self._installed.models if model.name not in self._installed.facts]
        if self._asking_facts or not unknown:
            return
        self._asking_facts = True
        under = self._installed.find(self.browser.key) if self.browser.view is self._installed else None
        marked = self._installed.models[under] if under is not None else None
        model = marked if marked in unknown and marked else unknown[0]

        def ask(models: Models) -> Facts:
            return Facts(models.fit_of(model), models.pairs(model.name)) if model.usable else Facts(None, [])

        def know(facts: Facts) -> None:
            self._asking_facts = False
            self._installed.facts[model.name] = facts
            self._redraw(self._installed)
            self._ask_facts()

        self._behind(ask, know, lambda error: know(Facts(None, [])))

    def _search_hub(self, text: str) -> None:
        """Asks the hub; what an older question finds is dropped."""
        view, sort = self._search, self._search.sort
        view.asked, view.found, view.error, view.ready = text, [], "", False
        view.waiting = f"Asking the hub for “{one_line(text)}” …"
        self.browser.draw()

        def came(found: list[RepoSummary]) -> None:
            if view.asked == text and view.sort == sort:
                view.found, view.ready = found, True
                self._redraw(view)

        def failed(error: SlipstreamError) -> None:
            if view.asked == text and view.sort == sort:
                view.asked = ""  # Enter asks again
                self._no_list(view, error)

        self._behind(lambda models: models.search(text, sort), came, failed)

    # --- downloads ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Asks how far the downloads are, unless it is being found out."""
        if not self._looking:
            self._looking = True
            failed = partial(self._no_list, self._downloads)
            self._behind(lambda models: (models.offline, models.jobs()), self._looked, failed)

    def _looked(self, seen: tuple[bool, list[Job]]) -> None:
        """Shows how far the downloads are; what has come is listed."""
        self._looking = False
        offline, jobs = seen
        self._downloads.take(jobs)
        ended = {job.id for job in jobs if job.state == "done"}
        if ended - self._done:
            self._done = ended
            self._list_installed()
            self._behind(lambda models: models.offers(), self._offers_came)
        self._count()
        if offline != self._offline:
            self._offline = offline
            if self.tab == SEARCH:
                self.go_to(SEARCH)
        if self.is_current:
            self._redraw(self._downloads)

    def _count(self) -> None:
        under_way = sum(1 for job in self._downloads.jobs if job.state != "done")
        self.tabs.counts = (len(self._installed.models), 0, 0, under_way)

    def _job(self) -> Job | None:
        """The download under the bar."""
        at = self.browser.at
        return self._downloads.jobs[at] if at is not None and self.tab == DOWNLOADS else None

    def _model(self) -> Installed | None:
        """The model under the bar."""
        view, at = self.browser.view, self.browser.at
        return view.models[at] if isinstance(view, InstalledView) and at is not None else None

    def _fetching(self, jobs: list[Job]) -> None:
        """Shows downloads that have begun."""
        self._look()
        self.go_to(DOWNLOADS)
        if not jobs:
            self._say("All of it is here already.")
        else:
            self._say(f"Fetching {' and '.join(one_line(name_of(job)) for job in jobs)}.")
