"""The chat's model and drafter: loading, switching, and failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from slipstream.app.chats.deletion_hooks import is_on
from slipstream.app.library.load_request import head_files
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import DrafterOffer, Loaded
from slipstream.app.protocol.requests import Load
from slipstream.app.settings.values import Settings
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.engine_service import EngineService, LoadProgress
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:  # a slow import: the chat is drawn first
    from slipstream.models.library.records import InstalledModel

AsyncCallback = Callable[[], Awaitable[None]]
ENDED = "the engine has ended; the next message starts it again"


class ActiveModel:
    """Loads the chat's model, and switches models and drafters."""

    def __init__(
        self, page: ChatPage, engine: EngineService, models: ModelsAccess, load: Load, name: str, show: AsyncCallback
    ) -> None:
        self._page, self._engine, self._models, self._show_chat = page, engine, models, show
        self.load = load  # the load request
        self.name = name  # the model's display name
        self.loaded: Loaded | None = None  # the model while it is loaded
        self.known: Loaded | None = None  # the model that was loaded last; kept while a benchmark uses its memory
        self._settings: Settings | None = None
        self._former: tuple[Load, str] | None = None  # previous request and name; restored if the new load fails
        self._chosen: InstalledModel | None = None  # becomes the default model once it is loaded
        self._when_ready: AsyncCallback | None = None  # called once the model is loaded
        self._began = 0.0  # when the load began
        self.load_seconds = 0.0  # how long the last load took
        self.awaits = False  # whether the load waits for another machine, which may never answer
        self._context_before: int | None = None  # previous stored context length; restored if the new load fails
        # stores the context length for a model file, or removes it if None; the settings set this function
        self.keep_context: Callable[[str, int | None], None] = lambda _file, _tokens: None
        # lists a model that the command line named by its path; the settings set this function
        self.remember: Callable[[str], None] = lambda _model: None
        self.unavailable = ""  # text for the prompt's border while something else uses the model's memory, or empty

    @property
    def not_loaded(self) -> str:
        if self._engine.busy or self.unavailable:
            return "The model is not loaded yet."
        return "The model is not loaded. The next message loads it."

    def start(self) -> None:
        if self.unavailable:
            self._page.say(self.unavailable)
        else:
            self._page.say("loading the model")
            self._began = monotonic()
            self._engine.load(self.load)

    def need(self, then: AsyncCallback) -> None:
        self._when_ready = then
        if not self._engine.busy:
            self.start()
        waits = f"afterwards: {self.unavailable}" if self.unavailable else "when the model is loaded"
        self._page.say(f"will be sent {waits}")

    def progress(self, message: LoadProgress) -> None:
        self.awaits = False
        self._page.status.promise("")  # that of the model before does not hold for this one
        first = "will be sent when the model is loaded: " if self._when_ready else ""
        self._page.say(first + message.words)
        if self._page.welcome:
            self._page.welcome.progress(message.share)

    def wait(self, machines: str) -> None:
        self.awaits = True
        self._page.say(f"waiting for {machines} · Esc stops")

    async def ready(self, loaded: Loaded) -> None:
        self.awaits = False
        chosen, self._chosen, self._former = self._chosen, None, None
        if chosen and not self._engine.busy:
            screen, tell = self._page.screen, self._page.tell_error
            self._models.ask(screen, lambda models: models.make_usual(chosen), lambda _: None, tell)
        elif self.known is None:
            self.remember(self.load.model)
        self.loaded = self.known = loaded
        self.load_seconds = monotonic() - self._began
        self.name = one_line(loaded.title)
        self._page.say("")
        self._page.top_bar.loaded = loaded
        self._page.status.promise(loaded.promise)
        if self._page.welcome:
            self._page.welcome.ready(loaded)
        await self._page.name_failed(loaded.failed)
        if loaded.remark:
            await self._page.remark(loaded.remark)
        if loaded.rope:
            self._page.hint(context_words(loaded))
        then, self._when_ready = self._when_ready, None
        if then:
            await then()

    async def failed(self, error: SlipstreamError) -> None:
        self.awaits = False
        former, self._former, self._chosen, self._when_ready = self._former, None, None, None
        if former and former[0].model == self.load.model and former[0].n_ctx != self.load.n_ctx:
            self.keep_context(Path(self.load.model).name, self._context_before)
        if former:
            await self.take(*former)  # first: it clears an empty chat
            await self._page.remark(f"going back to {former[1]}.")
        else:
            self._page.say("no model is loaded; Enter tries again")
            if self._page.welcome:
                self._page.welcome.failed()
        await self._page.notice(error)

    def died(self) -> None:
        self.loaded = None
        self._page.say(ENDED)

    def lend(self, why: str) -> None:
        """Marks the model as unloaded while other work uses its memory; sent prompts wait, and the border says why."""
        self.unavailable = why
        self.loaded = None
        self._page.top_bar.loaded = None
        self._page.status.idle()
        self._page.say(why)

    def take_back(self) -> None:
        self.unavailable = ""
        self.start()

    def apply_settings(self, now: Settings) -> None:
        self._settings = now
        self.load = now.loading(self.load)

    async def use(self, load: Load, model: InstalledModel) -> None:
        if self.loaded:
            self._former = (self.load, self.name)
        self._chosen = model
        await self.take(load, model.title or model.name)

    async def take_context(self, text: str) -> None:
        known, file = self.known, Path(self.load.model).name
        if not text:
            self._page.hint(context_words(known) if known else self.not_loaded)
            return
        try:
            tokens = None if text.casefold() == "auto" else int(text.replace(",", "").replace("_", ""))
        except ValueError:
            hint = "It is a number of tokens, or auto for the model's own."
            raise UsageError(f"not a valid context: {one_line(text)}.", hint) from None
        if known and tokens and tokens > (known.n_ctx_longest or tokens):
            raise UsageError(f"a context of {tokens:,} tokens is too long for {known.name}.", context_words(known))
        former, before = (self.load, self.name), self._settings.contexts.get(file) if self._settings else None
        self.keep_context(file, tokens)
        self._former, self._context_before = former if self.loaded else None, before
        await self.take(replace(self.load, drafter=self.drafter), self.name)

    async def load_again(self, drafter: str) -> None:
        paths = Paths.default()
        heads = dict.fromkeys([*map(str, head_files(paths, self.load.bundled)), *self.load.heads])
        index = str(paths.index) if is_on(paths.index) else None
        self._former = (replace(self.load, drafter=self.drafter), self.name)
        fresh = replace(self.load, heads=[head for head in heads if Path(head).exists()], index=index, drafter=drafter)
        await self.take(fresh, self.name)

    async def take(self, load: Load, name: str) -> None:
        own = self.load
        self.load = replace(load, spare_cores=own.spare_cores, draft_gpu_layers=own.draft_gpu_layers, states=own.states)
        if self._settings:
            self.load = self._settings.loading(self.load)
        self.name, self._page.conversation.drafter = one_line(name), load.drafter
        self.loaded = None
        self._page.top_bar.loaded = None
        self._page.status.clear()
        self._page.status.promise("")  # that of the model before
        if self._page.welcome:
            await self._show_chat()
        self.start()
        self._page.hint(f"Loading {self.name}.")

    def offers(self) -> list[DrafterOffer]:
        """The drafters of the last loaded model; a combination that the chat began with is added."""
        listed, own = self.known.drafters if self.known else [], self.load.drafter
        if not self.known or any(offer.name == own for offer in listed):
            return listed
        return [DrafterOffer(own, True, about="what this chat began with"), *listed]

    def named_drafters(self) -> dict[str, str]:
        return {offer.name: offer.about for offer in self.offers() if offer.usable}

    @property
    def drafter(self) -> str:
        return self._page.conversation.drafter

    def draft_with(self, name: str) -> None:
        if name != self.drafter:
            self._page.conversation.drafter = name
            self._page.status.switch()
            self._page.hint(f"Next reply: {name}; F9 keeps one for each start")

    def use_drafter(self, name: str) -> None:
        """Sets the drafter of the next reply; raises ``UsageError`` if none has the name, or it does not fit."""
        offer = next((offer for offer in self.offers() if offer.name == name.casefold()), None)
        if offer is None:
            raise UsageError(f"no drafter called “{one_line(name)}”.", "Ctrl-D lists all.")
        if not offer.usable:
            why = f"{offer.name} cannot guess for this model: {one_line(offer.why_not)}."
            raise UsageError(why, "Ctrl-D lists all.")
        self.draft_with(offer.name)

    def next_drafter(self) -> None:
        if self.loaded is None:
            self._page.hint(self.not_loaded)
            return
        usable = [offer.name for offer in self.offers() if offer.usable]
        if self.drafter in usable and len(usable) < 2:
            self._page.hint("No other drafter fits this model. Ctrl-D says why.")
            return
        at = usable.index(self.drafter) + 1 if self.drafter in usable else 0
        self.draft_with(usable[at % len(usable)])


def context_words(loaded: Loaded) -> str:
    words = f"Context: {loaded.n_ctx:,} tokens{f', by {loaded.rope}' if loaded.rope else ''}."
    if loaded.n_ctx_longest > loaded.n_ctx_trained:
        return f"{words} Trained on {loaded.n_ctx_trained:,}; {loaded.n_ctx_longest:,} at most."
    return f"{words} {loaded.n_ctx_longest:,} at most." if loaded.n_ctx_longest else words
