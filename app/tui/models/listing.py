"""The model manager: its tabs, and the queries that fill their lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from textual import events
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from slipstream.app.platform.safe_text import one_line, sentence
from slipstream.app.protocol.requests import Load
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.hub import SearchLine, SearchView
from slipstream.app.tui.models.installed import DownloadsView, InstalledView, ModelFacts
from slipstream.app.tui.models.machine import MemoryLine
from slipstream.app.tui.models.pairs import RecommendedView
from slipstream.app.tui.parts.browser import Browser, View
from slipstream.app.tui.parts.notice import ErrorHandler, hint, trouble
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.library.offers import CatalogOffer
    from slipstream.models.hub.types import QueuedDownload, RepoSummary
    from slipstream.models.library.records import InstalledModel
    from slipstream.models.llama.devices import Device
    from slipstream.models.llama.remote import Lender

TAB_GAP = 3
T = TypeVar("T")
INSTALLED, RECOMMENDED, SEARCH, DOWNLOADS = range(4)
NAMES = ("Installed", "Recommended", "Search", "Downloads")
SHORT = ("Here", "Best", "Find", "Fetch")
LOOK_EVERY = 0.25  # interval in seconds at which downloads are polled


class TabNames(Widget):
    """Tabs with their number keys and counts; a click chooses one."""

    current: reactive[int] = reactive(0)
    counts: reactive[tuple[int, ...]] = reactive(())  # number of entries of each tab; 0 is not shown

    def _labels(self) -> list[str]:
        """The longest labels that fit: with counts, without, or shortened."""
        counts = [*self.counts, *[0] * len(NAMES)]
        full = [f"{name} ({count})" if count else name for name, count in zip(NAMES, counts, strict=False)]
        room = self.size.width - 2
        for names in (full, NAMES, SHORT):
            labels = [f"{at} {name}" for at, name in enumerate(names, start=1)]
            if sum(map(len, labels)) + TAB_GAP * (len(labels) - 1) <= room:
                break
        return labels

    def render(self) -> Content:
        parts = []
        for at, label in enumerate(self._labels()):
            here = at == self.current
            key, name = label.split(" ", 1)
            shown = Content(name).stylize("bold $primary underline" if here else "$foreground 60%")
            parts.append(Content.styled(f"{key} ", "$primary").append(shown))
        return Content(" ").append(Content(" " * TAB_GAP).join(parts))

    async def on_click(self, event: events.Click) -> None:
        left = 1
        for at, label in enumerate(self._labels()):
            if left - 1 <= event.x <= left + len(label):
                await self.run_action(f"screen.tab({at})")
            left += len(label) + TAB_GAP


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model to load, and its load request."""

    load: Load
    model: InstalledModel


class Listing:
    """The four lists of the model manager, one of which is shown."""

    def __init__(
        self, screen: Screen[ModelChoice | None], browser: Browser, installed: InstalledView, models: ModelsAccess
    ) -> None:
        self.installed = installed
        self.recommended = RecommendedView()
        self.search = SearchView()
        self.here = InstalledView()  # the installed models that match the search, shown while offline
        self.downloads = DownloadsView()
        self.browser, self.tabs, self.line = browser, TabNames(), SearchLine()
        self.machine = MemoryLine(classes="machine")
        self._screen, self._models = screen, models
        self._done: set[str] = set()  # downloads that have ended
        self._asking_facts = False
        self._asked_list = 0  # lists of installed models that were asked for
        self._looking = False
        self._keys_for: tuple[int, View[Any], bool] | None = None  # the state that the footer shows

    def begin(self) -> None:
        self.ask(lambda models: models.offers(), self._offers_came)
        self._screen.set_interval(LOOK_EVERY, self.look)
        self.look()
        self.go_to(INSTALLED)

    def ask(
        self, what: Callable[[ModelManager], T], then: Callable[[T], object], failed: ErrorHandler | None = None
    ) -> None:
        self._models.ask(self._screen, what, then, failed or partial(trouble, self._screen))

    def ask_hub(self, what: Callable[[ModelManager], T], then: Callable[[T], object]) -> None:
        self._models.ask_hub(self._screen, what, then, partial(trouble, self._screen), slow=partial(hint, self._screen))

    @property
    def offline(self) -> bool:
        return self._models.offline

    @property
    def tab(self) -> int:
        return self.tabs.current

    def go_to(self, tab: int) -> None:
        self.tabs.current = tab
        self.line.display = tab == SEARCH
        here = self.here if self.offline else self.search
        views: tuple[View[Any], ...] = (self.installed, self.recommended, here, self.downloads)
        self.browser.rows.can_focus = tab != SEARCH  # typing searches
        if tab == SEARCH:
            self.line.placeholder = "Offline: only what is here" if self.offline else "Search the hub"
            self.line.focus()
        self.narrow()
        self.browser.show(views[tab])
        if tab != SEARCH:
            self.leave_line()
        self._refresh_keys()

    def leave_line(self) -> None:
        """Moves the focus from the search line to the results, so that digits choose tabs."""
        self.browser.rows.can_focus = True
        if self.browser.rows.display:
            self.browser.rows.focus()
        else:
            self._screen.set_focus(None)
        self._refresh_keys()

    def narrow(self) -> None:
        words = self.line.value.casefold().split()
        names = [(model, f"{model.name} {model.repo}".casefold()) for model in self.installed.rows]
        self.here.rows = [model for model, name in names if all(word in name for word in words)]
        self.here.ready = True
        self.here.error = "Offline: the hub is not asked. These models are here." if self.offline else ""
        if self.browser.view is self.here:
            self.browser.draw()

    def redraw(self, view: View[Any]) -> None:
        if self.browser.view is view:
            self.browser.draw()
            self._refresh_keys()

    def _refresh_keys(self) -> None:
        """Refreshes the footer only if other keys apply; a refresh at every poll would cost too much."""
        now = (self.tab, self.browser.view, self.browser.row is None)
        if now != self._keys_for:
            self._keys_for = now
            self._screen.refresh_bindings()

    @property
    def model(self) -> InstalledModel | None:
        return self.browser.row if isinstance(self.browser.view, InstalledView) else None

    @property
    def job(self) -> QueuedDownload | None:
        return self.browser.row if self.tab == DOWNLOADS else None

    def mark_in_use(self, fingerprint: str, machines: Sequence[str]) -> None:
        self.installed.in_use = self.here.in_use = fingerprint
        self.machine.in_use = tuple(machines)

    def look_at_machines(self) -> None:
        """Reads the devices; queries other machines again, since they may have come or gone."""
        in_use = self.machine.in_use

        def look(models: ModelManager) -> tuple[list[Device], list[Lender]]:
            models.look_again(in_use)
            return models.devices(), models.lenders()

        self.ask(look, self._machine_known)

    def _machine_known(self, known: tuple[list[Device], list[Lender]]) -> None:
        devices, lenders = tuple(known[0]), tuple(known[1])
        before = self.machine.devices
        self.machine.lenders, self.machine.devices = lenders, devices
        if before not in ((), devices):
            self._forget_facts()
            self._ask_facts()
            self.ask(lambda models: models.offers(), self._offers_came)

    def _forget_facts(self) -> None:
        """Discards the facts of all models; facts that are still being computed go into the old dictionary."""
        self.installed.facts = self.here.facts = {}

    def list_installed(self) -> None:
        self._asked_list = number = self._asked_list + 1

        def came(models: list[InstalledModel]) -> None:
            if number == self._asked_list:  # an earlier list may come later, and lack the last change
                self._installed_came(models)

        self.ask(lambda models: models.installed(), came, partial(self._no_list, self.installed))

    def _installed_came(self, models: list[InstalledModel]) -> None:
        if models != self.installed.rows:  # a new model may draft for the others
            self._forget_facts()
        self.installed.rows = models
        self.installed.ready, self.installed.error = True, ""
        self._count()
        self.narrow()
        self.redraw(self.installed)
        self._ask_facts()

    def _offers_came(self, offers: list[CatalogOffer]) -> None:
        self.recommended.take(offers)
        self.recommended.ready, self.recommended.error = True, ""
        self.redraw(self.recommended)

    def _no_list(self, view: View[Any], error: SlipstreamError) -> None:
        view.ready = True
        view.error = f"{sentence(error.title)}\n{error.hint}"
        self.redraw(view)

    def _ask_facts(self) -> None:
        known = self.installed.facts
        unknown = [model for model in self.installed.rows if model.name not in known]
        if self._asking_facts or not unknown:
            return
        self._asking_facts = True
        model = self.model if self.model and self.model in unknown else unknown[0]

        def ask(models: ModelManager) -> ModelFacts:
            if not model.usable:
                return ModelFacts(None, [])
            facts = ModelFacts(None, models.pairs(model.name), models.speed_of(model))
            return replace(facts, fit=models.fit_of(model, facts.drafter))

        def know(facts: ModelFacts) -> None:
            self._asking_facts = False
            known[model.name] = facts
            self.redraw(self.installed)
            self._ask_facts()

        self.ask(ask, know, lambda error: know(ModelFacts(None, [])))

    def search_hub(self, text: str) -> None:
        view, sort = self.search, self.search.sort
        view.asked, view.rows, view.error, view.ready = text, [], "", False
        view.waiting = f"Asking the hub for “{one_line(text)}” …"
        self.browser.draw()

        def came(found: list[RepoSummary]) -> None:
            if view.asked == text and view.sort == sort:
                view.rows, view.ready = found, True
                self.redraw(view)

        def failed(error: SlipstreamError) -> None:
            if view.asked == text and view.sort == sort:
                view.asked = ""  # Enter searches again
                self._no_list(view, error)

        def slow(words: str) -> None:
            if view.asked == text and not view.ready:
                view.waiting = words
                self.redraw(view)

        self._models.ask_hub(self._screen, lambda models: models.search(text, sort), came, failed, slow=slow)

    def look(self) -> None:
        if not self._looking:
            self._looking = True
            self.ask(lambda models: models.jobs(), self._looked, self._not_looked)

    def _not_looked(self, error: SlipstreamError) -> None:
        self._looking = False  # the next poll may succeed
        self._no_list(self.downloads, error)

    def _looked(self, jobs: list[QueuedDownload]) -> None:
        self._looking = False
        self.downloads.error = ""
        self.downloads.take(jobs)
        ended = {job.id for job in jobs if job.state == "done"}
        if ended - self._done:
            self._done = ended
            self.list_installed()
            self.ask(lambda models: models.offers(), self._offers_came)
        self._count()
        if self.tab == SEARCH and (self.browser.view is self.here) != self.offline:
            self.go_to(SEARCH)
        if self._screen.is_current:
            self.redraw(self.downloads)

    def _count(self) -> None:
        under_way = sum(1 for job in self.downloads.rows if job.state != "done")
        self.tabs.counts = (len(self.installed.rows), 0, 0, under_way)
