"""Opens the model manager, suggests a first model, and tracks downloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from textual.timer import Timer

from slipstream.app.chats.records import StoredMessage
from slipstream.app.library.load_request import is_path
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import Load
from slipstream.app.tui.chat.commands import MARK
from slipstream.app.tui.chat.model import ActiveModel
from slipstream.app.tui.chat.page import LARGER, ChatPage
from slipstream.app.tui.chat.replying import ReplyWriter
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.library.manager import ModelManager
    from slipstream.app.library.offers import CatalogOffer
    from slipstream.app.tui.models.listing import ModelChoice
    from slipstream.app.tui.models.screen import ModelsScreen
    from slipstream.models.hub.types import QueuedDownload
    from slipstream.models.library.records import InstalledModel

LOOK_EVERY: Final = 0.5  # interval in seconds at which downloads are polled
OFFER_AFTER = 1.5  # seconds between a load and slow imports; without the wait, they would delay the first reply


class ModelPicker:
    """Switches models, and fetches them while the chat continues."""

    def __init__(self, page: ChatPage, models: ModelsAccess, model: ActiveModel, replies: ReplyWriter) -> None:
        self._page, self._models, self._model, self._replies = page, models, model, replies
        self.manager: ModelsScreen | None = None  # the model manager's screen, once it was opened
        self.offers: list[CatalogOffer] = []  # the suggested models: the one that a key fetches, and a better one
        self.offer_looked_for = False  # whether a suggestion was already searched for
        self.fetched: InstalledModel | None = None  # the suggested model, once it is installed
        self._names: dict[str, str] | None = None  # titles of the models by name, once they were looked for
        self.writer: StoredMessage | None = None  # the chat's last reply, if another model than the loaded one wrote it
        self._timer: Timer | None = None
        self._looking = False
        self._taken = False  # whether the suggested model is being fetched, or was
        self._under_way: set[str] = set()  # ids of running downloads; their end is reported

    def open_manager(self) -> None:
        from slipstream.app.tui.models.screen import ModelsScreen

        app, loaded = self._page.screen.app, self._model.loaded
        if self.manager is None:  # reused: its work continues while it is closed
            self.manager = ModelsScreen(self._models)
            app.install_screen(self.manager, "models")
        self.manager.listing.mark_in_use(loaded.fingerprint if loaded else "", loaded.machines if loaded else ())
        self._watch()
        app.push_screen(self.manager, self._chosen)

    async def _chosen(self, choice: ModelChoice | None) -> None:
        self._names = None
        if choice:
            await self._replies.after(partial(self._model.use, choice.load, choice.model))
        elif self.offer_looked_for:  # the model manager may have measured this machine
            self._find_offer()

    def named_models(self) -> dict[str, str]:
        """The models on this machine, each with its title; empty until a thread has looked for them."""
        if self._names is None:
            self._names = {}

            def found(models: list[InstalledModel]) -> None:
                self._names = {model.name: model.title for model in models if model.usable}
                self._page.prompt.offer()

            ask, failed = self._models.ask, lambda _: None  # an error recurs when a model is used
            ask(self._page.screen, lambda models: models.installed(), found, failed)
        return self._names

    def use_named(self, name: str) -> None:
        """Loads a model by its name, or by the path of its file, which is then linked into the list."""
        file = Path(name).expanduser().absolute() if is_path(name) else None

        def find(models: ModelManager) -> InstalledModel:
            installed = models.installed()
            for model in installed:
                if model.name.casefold() == name.casefold() or (file and model.path.resolve() == file.resolve()):
                    return model
            if file:
                return models.import_path(file)[0]
            names = ", ".join(one_line(model.name) for model in installed)
            raise UsageError(f"no model is called {one_line(name)}.", f"There are: {names}." if names else "")

        self._find_and_use(find, f"{MARK}model {name}")

    async def name_writer(self, messages: Sequence[StoredMessage]) -> None:
        """Says if another model than the loaded one wrote the last reply of the chat; F6 loads that one."""
        loaded = self._model.loaded
        last = next((message for message in reversed(messages) if message.writer), None)
        self.writer = last if last and loaded and last.model != loaded.fingerprint else None
        if self.writer and loaded:
            name = one_line(self.writer.writer)
            words = f"The last reply is by {name}; {one_line(loaded.title)} writes the next."
            await self._page.remark(words, f"F6 loads {name}.")
        self._page.refresh_keys()

    def _find_and_use(self, find: Callable[[ModelManager], InstalledModel], typed: str = "") -> None:
        """Loads a model in place of the loaded one; if that fails, gives back the command that was ``typed``."""

        def load(models: ModelManager) -> tuple[Load, InstalledModel]:
            found = find(models)
            return models.load_of(found), found

        def use(found: tuple[Load, InstalledModel]) -> None:
            self._page.screen.call_later(self._replies.after, partial(self._model.use, *found))

        def refuse(error: SlipstreamError) -> None:
            self._page.tell_error(error)
            if not self._page.prompt.text:
                self._page.prompt.put(typed)

        self._models.ask(self._page.screen, load, use, refuse)

    def look_for_offer(self) -> None:
        """Searches offline for a model to suggest in an empty chat, and after another was loaded, for another one."""
        if self._models.offers and (self.offer_looked_for or self._page.welcome):
            self.offer_looked_for = True
            self._find_offer()

    def _find_offer(self) -> None:
        file = Path(self._model.load.model).resolve()

        def suggest(models: ModelManager) -> tuple[list[CatalogOffer], InstalledModel | None]:
            offers = models.offers_for_this_machine()
            here = {model.name: model for model in models.installed()} if any(each.installed for each in offers) else {}
            in_use = {name for name, model in here.items() if model.path.resolve() == file}
            others = [offer for offer in offers if offer.installed not in in_use]
            return others, here.get(others[0].installed) if others else None

        self._models.ask(self._page.screen, suggest, self._offers_came, lambda error: None)

    def _offers_came(self, found: tuple[list[CatalogOffer], InstalledModel | None]) -> None:
        if self._taken and self.fetched is None:  # it is being fetched
            return
        self.offers, self.fetched = found
        self.show_offer()
        self._page.refresh_keys()

    def show_offer(self) -> None:
        words, self._page.larger = None, LARGER
        if self.offers:
            from slipstream.app.tui.models.pairs import larger, offered

            here = self.fetched is not None
            words, self._page.larger = offered(self.offers, here), larger(self.offers[0], here)
        if self._page.welcome:
            self._page.welcome.offer(words)

    def take_offer(self) -> None:
        here, screen = self.fetched, self._page.screen
        if writer := self.writer:

            def find(models: ModelManager) -> InstalledModel:
                if found := next((model for model in models.installed() if model.fingerprint == writer.model), None):
                    return found
                gone = f"{one_line(writer.writer)} is not on this machine any more."
                raise UsageError(gone, "Ctrl-L lists the models that are.")

            self._find_and_use(find)
        elif not self.offers:
            self._page.hint("No model is suggested now. Ctrl-L lists all.")
        elif here:
            self.offers = []
            self.show_offer()

            def ready(load: Load) -> None:
                screen.run_worker(self._replies.after(partial(self._model.use, load, here)))

            self._models.ask(screen, lambda models: models.load_of(here), ready, self._page.tell_error)
        else:
            self._page.hint("Asking the hub.")
            pair = self.offers[0].pair
            self._models.ask(screen, lambda models: models.fetch_pair(pair), self._fetching, self._page.tell_error)
        self._page.refresh_keys()

    def _fetching(self, jobs: list[QueuedDownload]) -> None:
        self._taken = True
        self._under_way |= {job.id for job in jobs}
        self._watch()
        self._page.hint("Fetching it: go on chatting. Ctrl-L shows how far it is.")

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._page.screen.set_interval(LOOK_EVERY, self._look)

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self._models.ask(self._page.screen, lambda models: models.jobs(), self._looked, self._cannot_look)

    def _cannot_look(self, error: SlipstreamError) -> None:
        self._looking = False
        if self._timer:
            self._timer.stop()
            self._timer = None

    def _looked(self, jobs: list[QueuedDownload]) -> None:
        self._looking = False
        running = [job.progress for job in jobs if job.state in ("queued", "running")]
        total = sum(progress.total for progress in running)
        self._page.top_bar.fetching = sum(progress.done for progress in running) / total if total else None
        for job in jobs:
            if job.state not in ("done", "failed"):
                self._under_way.add(job.id)
            elif job.id in self._under_way:
                self._under_way.remove(job.id)
                self._tell_end(job)

    def _tell_end(self, job: QueuedDownload) -> None:
        from slipstream.app.tui.models.installed import name_of

        name = one_line(name_of(job))
        if job.error:
            self._page.tell_error(SlipstreamError(f"{name}: {job.error[0]}", job.error[1]))
            return
        self._page.screen.notify(f"{name} is here. Ctrl-L lists it.", timeout=6, markup=False)
        if self.offers and job.files[0].repo == self.offers[0].pair.target.repo:

            def find(models: ModelManager) -> InstalledModel | None:
                return next((model for model in models.installed() if model.path == job.path), None)

            self._models.ask(self._page.screen, find, self._offer_is_here, self._page.tell_error)

    def _offer_is_here(self, model: InstalledModel | None) -> None:
        self.fetched = model
        self.show_offer()
        self._page.refresh_keys()
