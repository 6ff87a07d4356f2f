"""The actions of the models screen on installed models and on downloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.tui.keys import sheet_keys
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.downloads import name_of
from slipstream.app.tui.models.hub import RepoScreen
from slipstream.app.tui.models.listing import DOWNLOADS, INSTALLED, Listing, ModelChoice
from slipstream.app.tui.parts.dialogs import Dialog, PathSuggester, confirm
from slipstream.app.tui.parts.format import percent
from slipstream.app.tui.parts.notice import hint, trouble
from slipstream.models.errors import SlipstreamError
from slipstream.models.library.catalog import is_model
from slipstream.models.library.pairing import unserved

if TYPE_CHECKING:
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.library.offers import CatalogOffer, QuantOffer, Removal
    from slipstream.models.hub.types import Discarded, QueuedDownload
    from slipstream.models.library.catalog import CatalogFile, CatalogPair
    from slipstream.models.library.records import InstalledModel, RemovedModel, Verification

TITLES = 3  # maximum number of chats that the removal dialog names


class ImportScreen(Dialog[tuple[Path, Literal["link", "copy"]] | None]):
    """Edits a path. Closes with the path and whether to link or copy the file, or with None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Back"),
        ("ctrl+y", "take('copy')", "Copy"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = "Import a model file"
            sheet.border_subtitle = sheet_keys("Enter links", "^y copies", "Esc back")
            yield Input(placeholder="/path/to/model.gguf, or a folder", suggester=PathSuggester())
            yield Static(
                Content(
                    "→ completes. A link takes no room and leaves the file where it is; a copy stands on its own."
                    " Of a folder, all models are listed."
                ),
                classes="detail",
            )

    def on_input_submitted(self) -> None:
        self.action_take("link")

    def action_take(self, how: Literal["link", "copy"]) -> None:
        typed = self.query_one(Input).value.strip()
        if typed:
            self.dismiss((Path(typed).expanduser(), how))


class ModelActions:
    """Actions on installed models and on downloads; each runs in a thread, and downloads outlive the screen."""

    def __init__(
        self,
        screen: Screen[ModelChoice | None],
        listing: Listing,
        models: ModelsAccess,
        use: Callable[[InstalledModel], None],
    ) -> None:
        self._screen, self._listing, self._models, self._use = screen, listing, models, use

    def verify(self) -> None:
        model = self._listing.model
        if model is None:
            return
        verifying = self._listing.installed.verifying
        if model.name in verifying:
            del verifying[model.name]
            self._listing.redraw(self._listing.installed)
            return
        verifying[model.name] = 0.0

        def read(done: int, total: int) -> None:
            if model.name in verifying:
                verifying[model.name] = done / max(total, 1)
                self._screen.call_later(self._listing.redraw, self._listing.installed)

        def verify(models: ModelManager) -> Verification | None:
            try:
                return models.verify(model.name, read, lambda: model.name not in verifying)
            except KeyboardInterrupt:  # it was stopped
                return None

        def checked(found: Verification | None) -> None:
            verifying.pop(model.name, None)
            self._listing.list_installed()
            if found and found.problem:
                trouble(self._screen, SlipstreamError(f"{model.name}: {found.problem}", found.hint))
            elif found:
                known = all(found.expected)
                hint(
                    self._screen,
                    f"{one_line(model.name)} {'checked: every byte is right' if known else 'file checked: OK'}.",
                )

        self._listing.ask(verify, checked)
        self._listing.redraw(self._listing.installed)

    def remove(self) -> None:
        model = self._listing.model
        if model is None:
            return
        if model.fingerprint == self._listing.installed.in_use:
            hint(self._screen, f"{one_line(model.name)} is in use. Use another model first.")
        elif model.origin == "bundled":
            hint(self._screen, "This model ships with slipstream and stays.")
        elif model.foreign:
            hint(self._screen, "Another program keeps this model; remove it there.")
        else:
            self._listing.ask(lambda models: models.removal(model.name), self._ask_removal)

    def _ask_removal(self, removal: Removal) -> None:
        name = removal.model.name
        titles = ", ".join(f"“{one_line(title)}”" for title in removal.chats[:TITLES])
        more = f" and {len(removal.chats) - TITLES} more" if len(removal.chats) > TITLES else ""
        wrote = f" It wrote in {plural(len(removal.chats), 'chat')}, which stay: {titles}{more}." if titles else ""
        detail = f"It goes to the system's trash, {size(removal.frees)}; the key u brings it back.{wrote}"

        def removed(gone: RemovedModel) -> None:
            hint(self._screen, f"Removed {one_line(gone.name)}. The key u brings it back.")
            self._listing.list_installed()

        remove = partial(self._listing.ask, lambda models: models.remove(name), removed)
        confirm(self._screen.app, f"Remove “{one_line(name)}”?", detail, "removes", remove)

    def undo(self) -> None:
        def back(brought: RemovedModel) -> None:
            hint(self._screen, f"{one_line(brought.name)} is here again.")
            self._listing.list_installed()

        self._listing.ask(lambda models: models.undo(), back)

    def ask_import(self) -> None:
        def chosen(answer: tuple[Path, Literal["link", "copy"]] | None) -> None:
            if answer:
                self._import(*answer)

        self._screen.app.push_screen(ImportScreen(), chosen)

    def _import(self, path: Path, how: Literal["link", "copy"]) -> None:
        view, name = self._listing.installed, one_line(path.name)

        def note(words: str) -> None:
            view.note = words
            self._listing.redraw(view)

        def read(done: int, total: int) -> None:
            self._screen.call_later(note, f"Taking in {name}: {percent(done / max(total, 1))}")

        def taken(models: list[InstalledModel]) -> None:
            note("")
            what = f"{one_line(models[0].name)} is" if len(models) == 1 else f"{len(models)} models are"
            hint(self._screen, f"{what} here now.")
            self._listing.list_installed()

        def refused(error: SlipstreamError) -> None:
            note("")
            trouble(self._screen, error)

        note(f"Taking in {name} …")
        self._listing.ask(lambda models: models.import_path(path, how, read), taken, refused)

    def fetch_recommended(self) -> None:
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
        hint(self._screen, "Asking the hub …")
        pair = offer.pair
        if unserved(pair):
            self.fetch_file(pair.target)
        else:
            self._listing.ask_hub(lambda models: models.fetch_pair(pair), self._begun)

    def fetch_file(self, file: CatalogFile) -> None:
        self._listing.ask_hub(lambda models: [models.fetch_file(file)], self._begun)

    def _installed(self, name: str) -> InstalledModel | None:
        return next((model for model in self._listing.installed.models if model.name == name), None)

    def _begun(self, jobs: list[QueuedDownload]) -> None:
        self._listing.look()
        self._listing.go_to(DOWNLOADS)
        if not jobs:
            hint(self._screen, "All of it is here already.")
        else:
            hint(self._screen, f"Fetching {' and '.join(one_line(name_of(job)) for job in jobs)}.")

    def sort(self) -> None:
        search = self._listing.search
        search.next_sort()
        hint(self._screen, f"Sorted by {'what is new and liked' if search.sort == 'trending' else search.sort}.")
        if search.asked:
            self._listing.search_hub(search.asked)
        self._listing.redraw(search)

    def open_repository(self) -> None:
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

        self._listing.ask_hub(fetch, self._begun)

    def pause(self) -> None:
        job = self._listing.job
        if job is None:
            return
        if job.state == "done":
            self._listing.go_to(INSTALLED)
        else:
            runs = job.state in ("queued", "running")
            self._listing.ask(
                lambda models: models.pause(job.id) if runs else models.resume(job.id), lambda _: self._listing.look()
            )

    def cancel(self) -> None:
        job = self._listing.job
        if job is None or job.state == "done":
            return
        name = one_line(name_of(job))

        def cancelled(gone: Discarded) -> None:
            self._listing.look()
            hint(self._screen, f"Gave up {name}; {size(gone.freed)} are free again.")

        what = f"{size(job.progress.done)} that have come are removed. A paused download can go on at any time instead."
        cancel = partial(self._listing.ask, lambda models: models.cancel(job.id), cancelled)
        confirm(self._screen.app, f"Give up fetching “{name}”?", what, "gives up", cancel)
