"""The thread that waits for the engine, so that the screen never does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from textual import on, work
from textual.message import Message
from textual.widget import Widget
from textual.worker import Worker, WorkerState

from slipstream.app.chats.recording import recorded
from slipstream.app.chats.records import StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Counted, Done, Prefilling, Stepped
from slipstream.app.engine.requests import Generate, Load, Prepare
from slipstream.app.settings.values import AheadSettings
from slipstream.app.tui.battery import on_battery
from slipstream.app.tui.engine import ChatEngine
from slipstream.app.tui.messages import (
    EngineEnded,
    LoadFailed,
    LoadProgress,
    ModelReady,
    PromptCounted,
    ReplyDone,
    ReplyFailed,
    ReplyPrefilling,
    ReplyStreamed,
)
from slipstream.models.errors import EngineDiedError, SlipstreamError

DRAW_EVERY: Final = 0.04
"""Seconds between messages of new text: 25 pictures a second look smooth and leave the processor to the engine."""

_LOOK_EVERY: Final = 0.02  # seconds


class _StepsWait(Message):
    """Steps wait to be shown."""


class EngineRoom(Widget):
    """Runs ``load`` and ``reply`` in a thread, one at a time, and posts what they tell; it is not seen."""

    DEFAULT_CSS = "EngineRoom { display: none; }"

    def __init__(self, engine: ChatEngine, store: ChatStore, ahead: AheadSettings) -> None:
        """Keeps the engine, the store that replies are kept in, and what is read before it is sent."""
        super().__init__()
        self.ahead = ahead
        """What is read before it is sent; may be changed at any time."""
        self._engine = engine
        self._store = store
        self._request = 0
        self._counting = 0  # number of the newest ``prepare``
        self._wanted: Load | None = None
        self._lock = threading.Lock()
        self._steps: list[Stepped] = []
        self._drawn = 0.0
        self._asked = 0.0  # when the reply was asked for
        self._waited_ms: float | None = None  # from then to its first token
        self.busy = False
        """Whether a load or a reply is under way."""

    def next_request(self) -> int:
        """Numbers a request."""
        self._request += 1
        return self._request

    def on_mount(self) -> None:
        """Listens for what comes unasked: the end of the engine, and what a prompt takes while it is typed."""
        self._engine.tell_count(self._counted)
        self._engine.tell_end(lambda error: self._tell(EngineEnded(error)))

    def release(self) -> None:
        """Ends the engine, which frees its memory; ``load`` starts it again. It blocks."""
        self._engine.close()

    def stop(self) -> None:
        """Ends the reply under way; in a thread, for an engine that hangs takes a while to hear it."""
        threading.Thread(target=self._engine.stop, args=(self._request,), name="stop", daemon=True).start()

    async def end_reply(self, patience: float) -> None:
        """Ends the reply under way and waits until all of it is kept, or for so many seconds."""
        self.stop()
        for _ in range(int(patience / _LOOK_EVERY)):
            if not self.busy:
                return
            await asyncio.sleep(_LOOK_EVERY)

    def watch_drafts(self, on: bool) -> None:
        """Has steps carry their drafts, or no longer; not here, see ``stop``."""
        threading.Thread(target=self._engine.watch, args=(on,), daemon=True).start()

    def load(self, load: Load) -> None:
        """Loads a model, in place of one that is on its way; ``ModelReady`` or ``LoadFailed`` follows."""
        with self._lock:
            self._wanted, busy = load, self.busy
            self.busy = True
        if not busy:
            self._load()

    def reply(self, generate: Generate, message: int, before: StoredMessage | None = None) -> None:
        """Asks for a reply and keeps it in the store; ``ReplyDone`` or ``ReplyFailed`` follows.

        Args:
            generate: The request.
            message: Number of the reply.
            before: The reply as it was, if it goes on.
        """
        self.busy = True
        self._asked, self._waited_ms = time.monotonic(), None
        self._reply(generate, message, before)

    def prepare(self, make: Callable[[], Prepare]) -> None:
        """Has the engine count what is typed, and read it unless that is off or the machine runs on its battery.

        Args:
            make: Makes the request, in a thread: a long chat takes a while to be read from the disk.
        """
        self._counting += 1
        self._prepare(make, self._counting)

    @work(thread=True, exclusive=True, exit_on_error=False, group="ahead")
    def _prepare(self, make: Callable[[], Prepare], number: int) -> None:
        with suppress(SlipstreamError):  # it comes again, and is shown, when the message is sent
            read = self.ahead.read and (self.ahead.on_battery or not on_battery())
            request = replace(make(), request=number, read=read)
            if not self.busy:
                self._engine.prepare(request)

    def _counted(self, counted: Counted) -> None:
        """Tells what the newest prompt takes; older ones have changed since."""
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
                told = self._wanted is load  # else another model was chosen meanwhile
                if told:
                    self._tell(outcome)

    @work(thread=True, exclusive=True, exit_on_error=False, group="engine", description="reply")
    def _reply(self, generate: Generate, message: int, before: StoredMessage | None) -> None:
        begun = False
        try:
            for event in recorded(self._awaited(generate), self._store, message, before=before):
                if isinstance(event, Stepped):
                    begun = True
                    self._collect(event)
                elif isinstance(event, Prefilling):
                    self._tell(ReplyPrefilling(event))
                elif isinstance(event, Done):
                    self._flush()
                    self._tell(ReplyDone(event))
        except SlipstreamError as error:
            self._flush()
            self._tell(ReplyFailed(error, begun, isinstance(error, EngineDiedError)))

    def _awaited(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        """The reply, timed as its reader waits for it: what the engine had to end before it, too."""
        for event in self._engine.reply(generate):
            if isinstance(event, Stepped) and self._waited_ms is None:
                self._waited_ms = 1000 * (time.monotonic() - self._asked)
            if isinstance(event, Done):
                event = replace(event, ttft_ms=self._waited_ms or 0.0)
            yield event

    def _collect(self, stepped: Stepped) -> None:
        """Keeps a step until the next picture is due; only the first since the last picture wakes the screen."""
        with self._lock:
            self._steps.append(stepped)
            first = len(self._steps) == 1
        if first:
            self.post_message(_StepsWait())

    @on(_StepsWait)
    def _steps_wait(self, message: _StepsWait) -> None:
        message.stop()
        self.set_timer(max(self._drawn + DRAW_EVERY - time.monotonic(), 0.001), self._flush)

    def _flush(self) -> None:
        """Posts the steps that wait."""
        with self._lock:
            steps, self._steps = self._steps, []
            self._drawn = time.monotonic()
            if steps:
                self.post_message(ReplyStreamed(steps, self._waited_ms or 0.0))

    def _tell(self, message: Message) -> None:
        if isinstance(message, ModelReady | LoadFailed | ReplyDone | ReplyFailed):
            self.busy = False
        self.post_message(message)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Shows a fault of the program itself as an error of the reply or the load, instead of ending the chat."""
        if event.state is WorkerState.ERROR and event.worker.group == "engine":
            error = SlipstreamError(f"slipstream itself failed: {event.worker.error!r}.", "Please report this.")
            loading = event.worker.description == "load"
            self._tell(LoadFailed(error) if loading else ReplyFailed(error, True, True))
