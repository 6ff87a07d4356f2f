"""Runs blocking engine calls in threads and posts the results as messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from textual import work
from textual.message import Message
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from slipstream.app.chats.recording import recorded
from slipstream.app.chats.records import StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.processes import on_battery
from slipstream.app.protocol.events import Counted, Done, Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Prepare
from slipstream.app.settings.values import AheadSettings
from slipstream.models.errors import EngineDiedError, SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.engine.process.client import Engine

_LOOK_EVERY: Final = 0.02  # seconds between two checks whether a reply has ended


@dataclass
class LoadProgress(Message):
    """Share of a model that is loaded, 0 to 1; None while its file is checked before its first use."""

    share: float | None

    @property
    def words(self) -> str:
        if self.share is None:
            return "checking the file"
        return f"loading the model {100 * self.share:.0f} %" if self.share < 0.9 else "measuring this machine, once"


@dataclass
class ModelReady(Message):
    """A model is loaded."""

    loaded: Loaded


@dataclass
class LoadFailed(Message):
    """A model could not be loaded."""

    error: SlipstreamError


@dataclass
class PromptCounted(Message):
    """The chat and the typed text were counted in tokens."""

    counted: Counted


@dataclass
class ReplyStreamed(Message):
    """Progress of the prefill of a reply or a summary, or its new text; the engine joins steps that follow fast."""

    event: Prefilling | Stepped


@dataclass
class ReplyDone(Message):
    """A reply is over."""

    done: Done


@dataclass
class ReplyFailed(Message):
    """A reply or a summary ended with an error."""

    error: SlipstreamError
    begun: bool  # whether part of it was received
    died: bool  # whether the engine has to be started again


@dataclass
class SummaryDone(Message):
    """A summary is written; empty if it was stopped."""

    text: str


@dataclass
class MachineAwaited(Message):
    """A load or a reply waits for remote machines that do not respond."""

    names: str


@dataclass
class EngineEnded(Message):
    """The engine's process ended while idle."""

    error: SlipstreamError


class EngineService(Widget):
    """An invisible widget that runs ``load`` and ``reply`` in a thread, one at a time, and posts their events."""

    DEFAULT_CSS = "EngineService { display: none; }"

    def __init__(self, engine: Engine, store: ChatStore, ahead: AheadSettings) -> None:
        super().__init__()
        self.ahead = ahead  # settings for prefilling typed text; may change at any time
        self._engine = engine
        self._store = store
        self._request = 0
        self._counting = 0  # number of the newest ``prepare``
        self._wanted: Load | None = None
        self._lock = threading.Lock()
        self.busy = False  # whether a load or a reply is under way

    def on_mount(self) -> None:
        self._engine.tell_count(self._counted)
        self._engine.tell_end(lambda error: self._tell(EngineEnded(error)))
        self._engine.tell_wait(lambda names: self._tell(MachineAwaited(names)))

    def release(self) -> None:
        """Ends the engine and frees its memory; blocks. ``load`` starts it again."""
        self._engine.close()

    def stop(self) -> None:
        """Ends the current reply, in a thread because the call blocks if the engine hangs."""
        threading.Thread(target=self._engine.stop, args=(self._request,), name="stop", daemon=True).start()

    def end_thoughts(self) -> None:
        threading.Thread(target=self._engine.end_thoughts, args=(self._request,), daemon=True).start()

    async def end_reply(self, patience: float) -> None:
        """Ends the current reply and waits up to ``patience`` seconds until it is stored."""
        self.stop()
        for _ in range(int(patience / _LOOK_EVERY)):
            if not self.busy:
                return
            await asyncio.sleep(_LOOK_EVERY)

    def watch_drafts(self, on: bool) -> None:
        """Switches whether steps carry their draft trees, in a thread as in ``stop``."""
        threading.Thread(target=self._engine.watch, args=(on,), daemon=True).start()

    def load(self, load: Load) -> None:
        """Loads a model, and supersedes a load in progress; ``ModelReady`` or ``LoadFailed`` follows."""
        with self._lock:
            self._wanted, busy = load, self.busy
            self.busy = True
        if not busy:
            self._load()

    def reply(self, generate: Generate, message: int, before: StoredMessage | None = None) -> None:
        """Requests a reply, or the rest of ``before``, and stores it; ``ReplyDone`` or ``ReplyFailed`` follows."""
        self.busy = True
        self._reply(self._numbered(generate), message, before)

    def summarize(self, write: Callable[[Callable[[Generate], Done]], str]) -> None:
        """Generates a summary without storing it; ``SummaryDone`` or ``ReplyFailed`` follows."""
        self.busy = True
        self._summarize(write)

    def prepare(self, make: Callable[[], Prepare]) -> None:
        """Counts the typed text, and prefills it if allowed; ``make`` runs in a thread: a long chat is slow to read."""
        self._counting += 1
        self._prepare(make, self._counting)

    @work(thread=True, exclusive=True, exit_on_error=False, group="ahead", description="prepare")
    def _prepare(self, make: Callable[[], Prepare], number: int) -> None:
        with suppress(SlipstreamError):  # the error recurs, and is shown, when the message is sent
            read = self.ahead.read and (self.ahead.on_battery or not on_battery())
            request = replace(make(), request=number, read=read)
            if not self.busy:
                self._engine.prepare(request)

    def _counted(self, counted: Counted) -> None:
        if counted.request == self._counting:
            self.post_message(PromptCounted(counted))

    @work(thread=True, exclusive=True, exit_on_error=False, group="engine", description="load")
    def _load(self) -> None:
        told = False
        while not told:
            load = self._wanted
            assert load
            try:
                outcome: Message = ModelReady(self._engine.load(load, lambda share: self._tell(LoadProgress(share))))
            except SlipstreamError as error:
                outcome = LoadFailed(error)
            with self._lock:
                told = self._wanted is load  # else another model was requested meanwhile
                if told:
                    self._tell(outcome)

    @work(thread=True, exclusive=True, exit_on_error=False, group="engine", description="reply")
    def _reply(self, generate: Generate, message: int, before: StoredMessage | None) -> None:
        begun = False
        try:
            for event in recorded(self._engine.reply(generate), self._store, message, before=before):
                begun = begun or isinstance(event, Stepped)
                self._tell(ReplyDone(event) if isinstance(event, Done) else ReplyStreamed(event))
        except SlipstreamError as error:
            self._tell(ReplyFailed(error, begun, isinstance(error, EngineDiedError)))

    @work(thread=True, exclusive=True, exit_on_error=False, group="engine", description="summarize")
    def _summarize(self, write: Callable[[Callable[[Generate], Done]], str]) -> None:
        try:
            self._tell(SummaryDone(write(self._asked)))
        except SlipstreamError as error:
            self._tell(ReplyFailed(error, False, isinstance(error, EngineDiedError)))

    def _numbered(self, generate: Generate) -> Generate:
        """The request with the next number, which ``stop`` names from now on."""
        self._request += 1
        return replace(generate, request=self._request)

    def _asked(self, generate: Generate) -> Done:
        done = None
        reply = self._engine.reply(self._numbered(generate))
        for event in reply:  # exhausts the iterator: abandoning it would stop the reply
            if isinstance(event, Done):
                done = event
            else:
                self._tell(ReplyStreamed(event))
        assert done  # ``reply`` raises otherwise
        return done

    def _tell(self, message: Message) -> None:
        if isinstance(message, ModelReady | LoadFailed | ReplyDone | ReplyFailed | SummaryDone):
            self.busy = False
        self.post_message(message)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Reports an internal error as a failed reply or load instead of ending the chat."""
        if event.state is WorkerState.ERROR and event.worker.group == "engine":
            error = SlipstreamError(f"Internal error: {event.worker.error!r}.", "Please report this.")
            loads = event.worker.description == "load"
            self._tell(LoadFailed(error) if loads else ReplyFailed(error, True, True))
