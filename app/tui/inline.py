"""A chat of a few lines below the shell's prompt: ``slipstream --inline``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from rich.console import RenderableType
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.driver import Driver
from textual.events import Event, Key
from textual.message import Message
from textual.widgets import Static, TextArea

from slipstream.app.chats.compaction import Compaction
from slipstream.app.chats.store import ChatStore
from slipstream.app.library.format import rate
from slipstream.app.library.load_request import remember_file
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import clean, plural, typed
from slipstream.app.protocol.events import Loaded, Prefilling, Stepped, failure_words
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.settings.presets import led_by, values_of
from slipstream.app.tui.chat.commands import MARK as SLASH
from slipstream.app.tui.chat.commands import is_command
from slipstream.app.tui.chat.conversation import Conversation, Exchange, SamplingChoice
from slipstream.app.tui.engine_service import (
    EngineEnded,
    EngineService,
    LoadFailed,
    LoadProgress,
    MachineAwaited,
    ModelReady,
    ReplyDone,
    ReplyFailed,
    ReplyPrefilling,
    ReplyStreamed,
    SummaryDone,
    SummaryFailed,
    SummaryStreamed,
)
from slipstream.app.tui.input_guard import InputGuard, guard_handlers
from slipstream.app.tui.keys import types_nothing
from slipstream.app.tui.parts.notice import ChatsChanged
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:
    from slipstream.app.engine.process.client import Engine

MARK: Final = "\u203a "  # marks a question
COMPACT: Final = f"{SLASH}compact"
UNDO: Final = f"{COMPACT} undo"
REPLY_END_S: Final = 2.0  # seconds that a stopped reply may take to end when the user leaves


class Ask(TextArea):
    """Input of the question: Enter sends, Ctrl-J begins a new line, Ctrl-D leaves if it is empty."""

    class Sent(Message):
        """A question."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            event.prevent_default().stop()
            self.post_message(self.Sent(typed(self.text)))
        elif event.key == "ctrl+j":
            event.prevent_default().stop()
            self.insert("\n")
        elif event.key == "ctrl+d" and not self.text:  # the end of input, as in a shell
            event.prevent_default().stop()
            await self.run_action("app.leave")
        else:
            await super()._on_key(event)


class InlineChat(App[int]):
    """A chat in a few lines, which stay in the terminal after it ends."""

    ENABLE_COMMAND_PALETTE = False
    INLINE_PADDING = 0
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop_or_leave", "Stop, or leave", priority=True),
        Binding("ctrl+q,ctrl+c", "leave", "Leave", priority=True),
    ]
    CSS = """
    Screen { height: auto; max-height: 80vh; border: none; background: $background; }
    #said { height: auto; max-height: 60vh; scrollbar-size-vertical: 1; }
    .asked { color: $primary; height: auto; }
    .answer { height: auto; margin: 0 0 1 0; }
    #doing { color: $text-muted; height: 1; }
    Ask { height: auto; max-height: 6; border: none; padding: 0; }
    """

    def __init__(
        self,
        engine: Engine,
        load: Load,
        store: ChatStore,
        chat: str | None,
        sampling: Sampling,
        settings: SettingsFile,
    ) -> None:
        super().__init__()
        guard_handlers()
        self.input_guard = InputGuard(lambda words: self.call_later(self._show, words))
        now = settings.settings
        self._engine = engine
        self._store = store
        self._settings = settings
        self._service, self._load = EngineService(engine, store, now.ahead), load
        asked = bool(values_of(sampling, settings.kept.sampling.sampling(seed=0)))
        choice = SamplingChoice(sampling, lambda: settings.chosen)
        self._conversation = Conversation(store, choice, load.drafter, led_by(now.reply), chat=chat, own=not asked)
        self.ask = Ask(compact=True, show_line_numbers=False, highlight_cursor_line=False)
        self._status, self._column = Static(id="doing"), VerticalScroll(id="said")
        self.loaded: Loaded | None = None  # the model, while it is loaded
        self.turn: Exchange | None = None  # the question that is being answered
        self.text = self.shown = ""  # the reply so far, as the model wrote it and as it is shown
        self._answer = Static(classes="answer")
        self._left = False
        self._summary: tuple[Compaction, Loaded] | None = None  # the summary being written, and its model
        self._waiting = self._written = ""  # what is sent once the model is loaded; the answer so far
        self.said: list[str] = []  # everything shown, in order; the command prints it at the end

    def compose(self) -> ComposeResult:
        self._column.can_focus = False
        yield self._column
        yield self._status
        yield self.ask
        yield self._service

    def on_mount(self) -> None:
        self._store.listen(lambda words: self.post_message(ChatsChanged(words)))
        self.ask.focus()
        self._start()

    async def on_event(self, event: Event) -> None:
        """Drops Alt keys without a binding: the input would insert their character."""
        without_effect = isinstance(event, Key) and types_nothing(event, self.screen)
        if not without_effect and not self.input_guard.refuses(event, self):
            await super().on_event(event)

    def get_driver_class(self) -> type[Driver]:
        usual = super().get_driver_class()
        if sys.platform != "win32":
            from slipstream.app.tui.terminal import chat_driver

            return chat_driver(usual, inline=True)
        return usual

    def action_stop_or_leave(self) -> None:
        if self.turn or self._summary:
            self._service.stop()
        else:
            self.exit(0)

    def action_leave(self) -> None:
        """Leaves; an unfinished reply is kept as it is, an unfinished summary is dropped."""
        if self.turn:
            self._keep(self.shown)
        self._left = True
        self.exit(0)

    def exit(self, result: int | None = None, return_code: int = 0, message: RenderableType | None = None) -> None:
        super().exit(result, return_code, message)
        if sys.platform != "win32" and not self.is_headless:
            from slipstream.app.tui.terminal import end_in_time

            end_in_time(result or return_code)

    async def on_unmount(self) -> None:
        if self.turn or self._summary:
            await self._service.end_reply(REPLY_END_S)
        await asyncio.to_thread(self._engine.close)

    def _keep(self, text: str) -> None:
        if text:
            self.said.append(text)

    def _start(self) -> None:
        self._set_status("loading the model")
        self._service.load(self._load)

    def _set_status(self, words: str) -> None:
        self._status.update(Content(clean(words)))

    @on(Ask.Sent)
    async def _sent(self, message: Ask.Sent) -> None:
        if not message.text.strip() or self.turn or self._waiting or self._summary:
            return
        if is_command(message.text):
            try:
                await self._command(" ".join(message.text.split()))
            except SlipstreamError as error:
                await self._show_error(error)
            return
        if self.loaded is None:
            self._waiting = message.text
            if not self._service.busy:
                self._start()
            return
        self._waiting, text = "", message.text.removeprefix(SLASH)
        try:
            self.turn = self._conversation.ask(text, self.loaded)
        except SlipstreamError as error:
            await self._show_error(error)
            return
        self.ask.text = ""
        question = clean(text)
        self.said.append(f"{MARK}{question}")
        self.text = self.shown = self._written = ""
        self._answer = Static(classes="answer")
        await self._column.mount(Static(Content(f"{MARK}{question}"), classes="asked"), self._answer)
        self._column.anchor()
        self._service.reply(self.turn.generate, self.turn.reply.id, self.turn.before)

    async def _command(self, words: str) -> None:
        if words not in (COMPACT, UNDO):
            raise UsageError(
                f"only {COMPACT} and {UNDO} work here; nothing was sent.",
                "Start slipstream without --inline for the other commands; // sends a message that begins with /.",
            )
        if words == UNDO:
            there = self._conversation.undo_compact()
            self.ask.text = ""
            await self._show("the model reads the summarized messages again." if there else "this chat has no summary.")
            return
        plan = self._conversation.compaction()
        if self.loaded is None:
            self._waiting = words
            if not self._service.busy:
                self._start()
            return
        self._summary, self.ask.text = (plan, self.loaded), ""
        self.text = self.shown = self._written = ""
        self._answer = Static(classes="answer")
        await self._column.mount(self._answer)
        self._column.anchor()
        self._set_status(f"summarizing {plural(plan.count, 'message')} · Esc stops")
        self._service.summarize(self._conversation.summary_of(plan, self.loaded))

    @on(SummaryStreamed)
    def _summary_streamed(self, message: SummaryStreamed) -> None:
        if not self._summary:
            return
        match message.event:
            case Stepped() as step:
                self._written += clean("".join(piece.text for piece in step.parts.answer), self._written)
                self._answer.update(Content(self._written.strip("\n") or "thinking\u2026"))
                self._set_status(f"summarizing {plural(self._summary[0].count, 'message')} · Esc stops")
            case Prefilling(done=done, total=total):
                self._written = ""  # drop an intermediate summary: the last one covers all messages
                self._set_status(f"summarizing: reading {done:,} of {total:,} tokens · Esc stops")

    @on(SummaryDone)
    async def _summarized(self, message: SummaryDone) -> None:
        under_way, self._summary = self._summary, None
        if not under_way or self._left:
            return
        plan, loaded = under_way
        await self._answer.remove()
        if not message.text:
            await self._show("stopped; nothing was changed.")
        else:
            try:
                self._conversation.compact(plan, message.text, loaded)
            except SlipstreamError as error:
                await self._show_error(error)
                return
            await self._show(message.text)
            await self._show(f"{plural(plan.count, 'message')} summarized; {UNDO} brings them back.")
        self._set_status("Enter sends · Esc leaves")

    @on(SummaryFailed)
    async def _summary_failed(self, message: SummaryFailed) -> None:
        self._summary = None
        if message.died:
            self.loaded = None
        await self._answer.remove()
        error = message.error
        await self._show_error(SlipstreamError(error.title, f"{error.hint} The chat is as it was.".strip()))

    @on(LoadProgress)
    def _progress(self, message: LoadProgress) -> None:
        self._set_status(message.words)

    @on(MachineAwaited)
    def _machine_awaited(self, message: MachineAwaited) -> None:
        self._set_status(f"waiting for {clean(message.names)} · Esc stops")

    @on(ModelReady)
    async def _model_ready(self, message: ModelReady) -> None:
        self.loaded = message.loaded
        remember_file(Paths.default(), self._settings, self._load.model)
        self._conversation.take_advice(message.loaded.sampling)
        self._set_status(f"{message.loaded.title} · Enter sends · Esc stops or leaves")
        if message.loaded.remark:
            await self._show(message.loaded.remark)
        await self._show_failures(message.loaded.failed)
        if self._waiting:
            text, self._waiting = self._waiting, ""
            await self._sent(Ask.Sent(text))

    @on(LoadFailed)
    def _load_failed(self, message: LoadFailed) -> None:
        self.said.append(clean(f"{message.error.title} {message.error.hint}"))
        self.exit(message.error.code)

    @on(ReplyPrefilling)
    def _prefilling(self, message: ReplyPrefilling) -> None:
        self._set_status(f"reading {message.event.done:,} of {message.event.total:,} tokens")

    @on(ReplyStreamed)
    def _streamed(self, message: ReplyStreamed) -> None:
        step, speed = message.step, message.step.speed
        self.text += "".join(piece.text for piece in step.pieces)
        self._written += clean("".join(piece.text for piece in step.parts.answer), self._written)
        self.shown = self._written.strip("\n")
        self._answer.update(Content(self.shown or "thinking\u2026"))
        pace = f"{rate(speed.tok_per_s)} tok/s" if speed.tok_per_s else ""
        self._set_status(" · ".join(filter(None, [pace, "Esc stops"])))

    @on(ReplyDone)
    async def _done(self, message: ReplyDone) -> None:
        done = message.done
        self._answer.update(Content(self.shown))
        self._keep(self.shown)
        await self._show_failures(done.failed)
        for words, hint in done.remarks.items():
            await self._show(f"{words} {hint}")
        self.turn = None
        self._set_status("Enter sends · Esc leaves" if done.reason != "context" else "the context is full · Esc leaves")

    @on(ReplyFailed)
    async def _failed(self, message: ReplyFailed) -> None:
        turn, self.turn = self.turn, None
        if message.died:
            self.loaded = None
        if self.text:
            self._keep(self.shown)
        elif turn:  # refused before any text: give the question back
            self.ask.text = turn.asked.content
            with suppress(SlipstreamError):  # show the first error, not this one
                self._conversation.withdraw(turn)
        await self._show_error(message.error)

    @on(ChatsChanged)
    async def _chats_changed(self, message: ChatsChanged) -> None:
        await self._show(message.words)

    @on(EngineEnded)
    def _ended(self) -> None:
        if not self._service.busy:
            self.loaded = None
            self._set_status("the engine has ended; the next message starts it again")

    async def _show_failures(self, failed: Mapping[str, str]) -> None:
        for words in failure_words(failed):
            self.said.append(f"{clean(words)}.")
            await self._column.mount(Static(Content(self.said[-1]), classes="answer"))

    async def _show_error(self, error: SlipstreamError) -> None:
        await self._show(f"{error.title} {error.hint}".strip())
        self._set_status("Enter sends · Esc leaves")

    async def _show(self, words: str) -> None:
        self.said.append(clean(words))
        await self._column.mount(Static(Content(clean(words)), classes="answer"))
