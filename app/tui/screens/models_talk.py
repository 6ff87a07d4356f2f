"""The talk and the models: which one replies, and which are on their way."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from textual import on
from textual.timer import Timer

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.requests import Load
from slipstream.app.safe_text import one_line
from slipstream.app.tui.behind import behind
from slipstream.app.tui.conversation import Conversation
from slipstream.app.tui.engine_room import EngineRoom
from slipstream.app.tui.messages import LoadFailed, ModelReady
from slipstream.app.tui.models import Desk
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.app.tui.widgets.notice import Notice
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # loaded when they are first needed: the chat is on the screen before
    from slipstream.app.models.manager import CatalogOffer
    from slipstream.app.tui.screens.models import ModelsScreen
    from slipstream.app.tui.screens.models_list import Choice
    from slipstream.models.download_types import Job
    from slipstream.models.store_types import Installed

LOOK_EVERY = 0.5
"""Seconds between two looks at the downloads."""
OFFER_AFTER = 1.5
"""Seconds after a load in which nothing else is loaded into this process: what is typed first is answered first."""


class ModelsTalk(TalkScreen):
    """A talk whose model can be changed, and fetched while another one replies."""

    def __init__(
        self, room: EngineRoom, load: Load, store: ChatStore, conversation: Conversation, model: str, desk: Desk
    ) -> None:
        """Keeps the parts; see ``TalkScreen``.

        Args:
            room: The engine's thread.
            load: What to load.
            store: All chats.
            conversation: The chat to begin with.
            model: What to call the model until it says its name.
            desk: Who knows the models.
        """
        super().__init__(room, load, store, conversation, model)
        self._desk = desk
        self._manager: ModelsScreen | None = None
        self._former: tuple[Load, str] | None = None  # to go back to, if another model cannot be loaded
        self._chosen: Installed | None = None  # to be taken at the next start, too, if it can be loaded
        self._offer: CatalogOffer | None = None
        self._offered = False  # whether an offer was looked for
        self._fetched: Installed | None = None  # the offer, once it has come
        self._watch: Timer | None = None
        self._looking = False
        self._under_way: set[str] = set()  # downloads whose end is to be told

    # --- another model --------------------------------------------------------------------------------------------

    def action_models(self) -> None:
        """Opens the model manager."""
        from slipstream.app.tui.screens.models import ModelsScreen

        if self._manager is None:  # kept from now on: its work goes on while it is closed
            self._manager = ModelsScreen(self._desk)
            self.app.install_screen(self._manager, "models")
        self._manager.in_use(self._loaded.fingerprint if self._loaded else "")
        self._watch_downloads()
        self.app.push_screen(self._manager, self._model_chosen)

    async def _model_chosen(self, choice: Choice | None) -> None:
        if choice:
            await self._after_reply(partial(self._use, choice.load, choice.model))

    async def _use(self, load: Load, model: Installed) -> None:
        """Goes on with another model; the chat keeps its text."""
        if self._loaded:
            self._former = (self._load, self._model)
        self._chosen = model
        await self._take(load, model.name)

    async def _take(self, load: Load, name: str) -> None:
        own = self._load
        self._load = replace(
            load, spare_cores=own.spare_cores, draft_gpu_layers=own.draft_gpu_layers, states=own.states
        )
        if self._settings:
            self._load = self._settings.loading(self._load)
        self._model, self._drafter = one_line(name), load.drafter
        self._loaded = None
        self.top_bar.loaded = None
        self.strip.clear()
        self.strip.switch(self._drafter, writing=False)
        if self._welcome:
            await self._show_chat()
        self._start_loading()
        self._hint(f"Loading {self._model}.")

    @on(ModelReady)
    def _settled(self, message: ModelReady) -> None:
        chosen, self._chosen, self._former = self._chosen, None, None
        if chosen and not self._room.busy:
            behind(self, lambda: self._desk.open().make_usual(chosen), lambda done: None, self._tell_error)
        self.set_timer(OFFER_AFTER, self._look_for_offer)

    @on(LoadFailed)
    async def _go_back(self, message: LoadFailed) -> None:
        """Goes on with the model that replied before, if the new one cannot be loaded."""
        former, self._former, self._chosen = self._former, None, None
        if former:
            load, name = former
            await self.transcript.add(Notice(f"going back to {name}.", remark=True))
            self.call_later(self._take, load, name)

    # --- the first model ------------------------------------------------------------------------------------------

    def _look_for_offer(self) -> None:
        """Looks, once and behind the screen, for a model to begin with; an empty chat shows it. Asks no network."""
        if not self._offered and self._welcome and self._desk.offers:
            self._offered = True
            behind(self, lambda: self._desk.open().offer_for_this_machine(), self._offer_came, lambda error: None)

    def _offer_came(self, offer: CatalogOffer | None) -> None:
        self._offer = offer
        self._show_offer()
        self.refresh_bindings()

    async def _show_chat(self, at: int | None = None) -> None:
        """Shows the conversation; one that is empty shows the offer, too."""
        await super()._show_chat(at)
        self._show_offer()

    def _show_offer(self) -> None:
        if self._offer and self._welcome:
            from slipstream.app.tui.widgets.models_offer import offered

            self._welcome.offer(offered(self._offer, here=self._fetched is not None))

    def action_offer(self) -> None:
        """Fetches the offered model with its drafter; once it is here, goes on with it."""
        offer, here = self._offer, self._fetched
        if here:
            self._offer = None

            def ready(load: Load) -> None:
                self.run_worker(self._after_reply(partial(self._use, load, here)))

            behind(self, lambda: self._desk.open().load_of(here), ready, self._tell_error)
        elif offer:
            self._hint("Asking the hub.")
            behind(self, lambda: self._desk.open().fetch_pair(offer.pair), self._fetching, self._tell_error)
        self.refresh_bindings()

    def _fetching(self, jobs: list[Job]) -> None:
        self._under_way |= {job.id for job in jobs}
        self._watch_downloads()
        self._hint("Fetching it: go on chatting. Ctrl-L shows how far it is.")

    # --- downloads ------------------------------------------------------------------------------------------------

    def _watch_downloads(self) -> None:
        """Shows from now on how far downloads are."""
        if self._watch is None:
            self._watch = self.set_interval(LOOK_EVERY, self._look)

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            behind(self, lambda: self._desk.open().jobs(), self._looked, self._cannot_look)

    def _cannot_look(self, error: SlipstreamError) -> None:
        """Looks no more; the model manager says why."""
        if self._watch:
            self._watch.stop()

    def _looked(self, jobs: list[Job]) -> None:
        self._looking = False
        running = [job.progress for job in jobs if job.state in ("queued", "running")]
        total = sum(progress.total for progress in running)
        self.top_bar.fetching = sum(progress.done for progress in running) / total if total else None
        for job in jobs:
            if job.state not in ("done", "failed"):
                self._under_way.add(job.id)
            elif job.id in self._under_way:
                self._under_way.remove(job.id)
                self._tell_end(job)

    def _tell_end(self, job: Job) -> None:
        from slipstream.app.tui.widgets.models_downloads import name_of

        name = one_line(name_of(job))
        if job.error:
            self._tell_error(SlipstreamError(f"{name}: {job.error[0]}", job.error[1]))
            return
        self.notify(f"{name} is here. Ctrl-L lists it.", timeout=6, markup=False)
        if self._offer and job.files[0].repo == self._offer.pair.target.repo:

            def find() -> Installed | None:
                return next((m for m in self._desk.open().installed() if m.path == job.path), None)

            behind(self, find, self._offer_is_here, self._tell_error)

    def _offer_is_here(self, model: Installed | None) -> None:
        self._fetched = model
        self._show_offer()
        self.refresh_bindings()
