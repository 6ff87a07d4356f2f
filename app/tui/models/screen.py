"""The screen of the model manager, and its keys."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.hub import SORTS, RepoScreen
from slipstream.app.tui.models.installed import InstalledView, name_of
from slipstream.app.tui.models.listing import DOWNLOADS, INSTALLED, NAMES, RECOMMENDED, SEARCH, Listing, ModelChoice
from slipstream.app.tui.models.pairs import PairsScreen
from slipstream.app.tui.parts.browser import Browser, BrowsingScreen
from slipstream.app.tui.parts.dialogs import Dialog, PathSuggester, confirm, path_there, sheet
from slipstream.app.tui.parts.format import percent
from slipstream.models.errors import SlipstreamError
from slipstream.models.library.catalog import is_model
from slipstream.models.library.pairing import unserved

if TYPE_CHECKING:
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.library.offers import CatalogOffer, QuantOffer, Removal
    from slipstream.app.protocol.requests import Load
    from slipstream.models.hub.types import QueuedDownload, RepoSummary
    from slipstream.models.library.catalog import CatalogFile, CatalogPair
    from slipstream.models.library.pairing import PairOffer
    from slipstream.models.library.records import InstalledModel, Verification

TITLES = 3  # maximum number of chats that the removal dialog names


class ImportScreen(Dialog[tuple[Path, Literal["link", "copy"]] | None]):
    """Edits a path. Closes with the path and whether to link or copy the file, or with None."""

    BINDINGS: ClassVar[list[BindingType]] = [("ctrl+y", "take('copy')", "Copy")]

    def compose(self) -> ComposeResult:
        with sheet(Vertical(classes="dialog"), "Import a model file", "Enter links", "^y copies", "Esc back"):
            yield Input(placeholder="/path/to/model.gguf, or a folder", suggester=PathSuggester())
            yield Static(classes="problem")
            yield Static(
                "→ completes. A link takes no room and leaves the file where it is; a copy stands on its own."
                " Of a folder, all models are listed.",
                classes="detail",
            )

    def on_input_submitted(self) -> None:
        self.action_take("link")

    def action_take(self, how: Literal["link", "copy"]) -> None:
        typed = self.query_one(Input).value.strip()
        if typed and (path := path_there(self, typed)):
            self.dismiss((path, how))


class ModelsScreen(BrowsingScreen[ModelChoice | None]):
    """Installed and recommended models, search results and downloads; closes with the model to use, and is reused."""

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
        Binding("escape,ctrl+l", "leave", "Back", key_display="Esc", priority=True),
    ]

    def __init__(self, models: ModelsAccess) -> None:
        installed = InstalledView()
        super().__init__(installed)
        self.listing = Listing(self, self.browser, installed, models)
        self._models = models

    def compose(self) -> ComposeResult:
        yield from (self.listing.machine, self.listing.tabs, self.listing.line, self.browser, KeyBar())

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
            "fetch_or_use": tab == RECOMMENDED and self.browser.row is not None,
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
            self._open_repository()

    @on(Browser.Chosen)
    def _chosen(self) -> None:
        if self.listing.tab == INSTALLED or (self.listing.tab == SEARCH and self.listing.offline):
            self.action_use()
        elif self.listing.tab == RECOMMENDED:
            self.action_fetch_or_use()
        elif self.listing.tab == SEARCH:
            self._open_repository()
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
                self._fetch_file(pair.fetch)
            elif pair:
                self._use(model, pair)

        self.app.push_screen(PairsScreen(model.name, pairs), chosen)

    def action_verify(self) -> None:
        if not (model := self.listing.model):
            return
        verifying = self.listing.installed.verifying
        if verifying.pop(model.name, None) is not None:
            self.listing.redraw(self.listing.installed)
            return
        verifying[model.name] = 0.0

        def read(done: int, total: int) -> None:
            if model.name in verifying:
                verifying[model.name] = done / max(total, 1)
                self.call_later(self.listing.redraw, self.listing.installed)

        def verify(models: ModelManager) -> Verification | None:
            try:
                return models.verify(model.name, read, lambda: model.name not in verifying)
            except KeyboardInterrupt:  # it was stopped
                return None

        def checked(found: Verification | None) -> None:
            verifying.pop(model.name, None)
            self.listing.list_installed()
            if found and found.problem:
                self.fail(SlipstreamError(f"{model.name}: {found.problem}", found.hint))
            elif found:
                words = "checked: every byte is right" if all(found.expected) else "file checked: OK"
                self.say(f"{one_line(model.name)} {words}.")

        self.listing.ask(verify, checked)
        self.listing.redraw(self.listing.installed)

    def action_remove(self) -> None:
        if not (model := self.listing.model):
            return
        if model.fingerprint == self.listing.installed.in_use:
            self.say(f"{one_line(model.name)} is in use. Use another model first.")
        elif model.origin == "bundled":
            self.say("This model ships with slipstream and stays.")
        elif model.foreign:
            self.say("Another program keeps this model; remove it there.")
        else:
            self.listing.ask(lambda models: models.removal(model.name), self._ask_removal)

    def _ask_removal(self, removal: Removal) -> None:
        name = removal.model.name
        titles = ", ".join(f"“{one_line(title)}”" for title in removal.chats[:TITLES])
        more = f" and {len(removal.chats) - TITLES} more" if len(removal.chats) > TITLES else ""
        wrote = f" It wrote in {plural(len(removal.chats), 'chat')}, which stay: {titles}{more}." if titles else ""
        detail = f"It goes to the system's trash, {size(removal.frees)}; the key u brings it back.{wrote}"
        words = f"Removed {one_line(name)}. The key u brings it back."
        remove = partial(self.listing.ask, lambda models: models.remove(name), lambda _: self._changed(words))
        confirm(self.app, f"Remove “{one_line(name)}”?", detail, "removes", remove)

    def _changed(self, words: str) -> None:
        self.say(words)
        self.listing.list_installed()

    def action_undo(self) -> None:
        self.listing.ask(
            lambda models: models.undo(), lambda back: self._changed(f"{one_line(back.name)} is here again.")
        )

    def action_import(self) -> None:
        def chosen(answer: tuple[Path, Literal["link", "copy"]] | None) -> None:
            if answer:
                self._import(*answer)

        self.app.push_screen(ImportScreen(), chosen)

    def _import(self, path: Path, how: Literal["link", "copy"]) -> None:
        view, name = self.listing.installed, one_line(path.name)

        def note(words: str) -> None:
            view.note = words
            self.listing.redraw(view)

        def read(done: int, total: int) -> None:
            self.call_later(note, f"Taking in {name}: {percent(done / max(total, 1))}")

        def taken(models: list[InstalledModel]) -> None:
            note("")
            what = f"{one_line(models[0].name)} is" if len(models) == 1 else f"{len(models)} models are"
            self.browser.mark(view, models[0].name)
            self._changed(f"{what} here now.")

        def refused(error: SlipstreamError) -> None:
            note("")
            self.fail(error)

        note(f"Taking in {name} …")
        self.listing.ask(lambda models: models.import_path(path, how, read), taken, refused)

    def action_fetch_or_use(self) -> None:
        offer: CatalogOffer | None = self.browser.row
        if offer is None or self._use_named(offer.installed):
            return
        self.say("Asking the hub …")
        pair = offer.pair
        if unserved(pair):
            self._fetch_file(pair.target)
        else:
            self.listing.ask_hub(lambda models: models.fetch_pair(pair), self._begun)

    def _fetch_file(self, file: CatalogFile) -> None:
        self.listing.ask_hub(lambda models: [models.fetch_file(file)], self._begun)

    def _use_named(self, name: str) -> bool:
        here = next((model for model in self.listing.installed.rows if model.name == name), None)
        if here:
            self._use(here)
        return here is not None

    def _begun(self, jobs: list[QueuedDownload]) -> None:
        self.listing.look()
        self.listing.go_to(DOWNLOADS)
        if not jobs:
            self.say("All of it is here already.")
        else:
            self.say(f"Fetching {' and '.join(one_line(name_of(job)) for job in jobs)}.")

    def action_sort(self) -> None:
        search = self.listing.search
        search.sort_by(SORTS[(SORTS.index(search.sort) + 1) % len(SORTS)])
        self.say(f"Sorted by {'what is new and liked' if search.sort == 'trending' else search.sort}.")
        if search.asked:
            self.listing.search_hub(search.asked)
        self.listing.redraw(search)

    def _open_repository(self) -> None:
        repo: RepoSummary | None = self.browser.row
        if repo and self.browser.view is self.listing.search:
            pair = self._pair_of(repo.id)
            screen = RepoScreen(self._models, repo, pair.drafter if pair else None)
            self.app.push_screen(screen, partial(self._fetch_quant, pair))

    def _pair_of(self, repo: str) -> CatalogPair | None:
        """The pair in the catalogue for a repository's model, whose drafter is a usable file; None if there is none."""
        offers = self.listing.recommended.rows
        pairs = [offer.pair for offer in offers if is_model(offer.pair.target, [repo])]
        return next((pair for pair in pairs if pair.drafter and not unserved(pair)), None)

    def _fetch_quant(self, pair: CatalogPair | None, offer: QuantOffer | None) -> None:
        if offer is None or self._use_named(offer.installed):
            return

        def fetch(models: ModelManager) -> list[QueuedDownload]:
            jobs = [models.fetch(offer.quant)]
            if pair and pair.drafter and not offer.quant.drafts:
                try:  # skips an installed drafter
                    jobs += models.fetch_pair(replace(pair, target=pair.drafter, drafter=None))
                except SlipstreamError as error:  # the model is fetched nevertheless
                    self.call_later(self.fail, error)
            return jobs

        self.listing.ask_hub(fetch, self._begun)

    def action_pause(self) -> None:
        job = self.listing.job
        if job and job.state == "done":
            self.listing.go_to(INSTALLED)
        elif job:
            runs, look = job.state in ("queued", "running"), lambda _: self.listing.look()
            self.listing.ask(lambda models: models.pause(job.id) if runs else models.resume(job.id), look)

    def action_cancel(self) -> None:
        job = self.listing.job
        if job is None or job.state == "done":
            return
        name = one_line(name_of(job))

        def cancelled(freed: int) -> None:
            self.listing.look()
            self.say(f"Gave up {name}; {size(freed)} are free again.")

        what = f"{size(job.progress.done)} that have come are removed. A paused download can go on at any time instead."
        cancel = partial(self.listing.ask, lambda models: models.cancel(job.id), cancelled)
        confirm(self.app, f"Give up fetching “{name}”?", what, "gives up", cancel)
