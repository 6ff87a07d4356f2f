"""A chat of a few lines below the shell's prompt: ``slipstream --inline``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Key
from textual.message import Message
from textual.widgets import Static, TextArea

from slipstream.app.chats.compaction import Compaction
from slipstream.app.chats.store import ChatStore
from slipstream.app.library.format import rate
from slipstream.app.library.load_request import remember_file
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import clean, plural, typed
from slipstream.app.protocol.events import Loaded, Prefilling, failure_words
from slipstream.app.protocol.requests import Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui import engine_service
from slipstream.app.tui.chat.commands import MARK as SLASH
from slipstream.app.tui.chat.commands import is_command
from slipstream.app.tui.chat.conversation import Exchange, opened
from slipstream.app.tui.engine_service import EngineService
from slipstream.app.tui.guarded_app import GuardedApp
from slipstream.app.tui.parts.format import NO_ANSWER
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

    @dataclass
    class Sent(Message):
        """A question."""

        text: str

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


class InlineChat(GuardedApp):
    """A chat in a few lines, which stay in the terminal after it ends."""

    INLINE = True
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
        self, engine: Engine, load: Load, store: ChatStore, chat: str | None, sampling: Sampling, settings: SettingsFile
    ) -> None:
        super().__init__()
        self._engine, self._store, self._settings = engine, store, settings
        self._service, self._load = EngineService(engine, store, settings.settings.ahead), load
        self._conversation = opened(store, load, sampling, settings, chat)
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
        yield from (self._column, self._status, self.ask, self._service)

    def on_mount(self) -> None:
        self._store.listen(lambda words: self.post_message(ChatsChanged(words)))
        self.ask.focus()
        self._start()

    def show_survived(self, words: str) -> None:
        self.call_later(self._show, words)

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
        try:
            if is_command(message.text):
                await self._command(" ".join(message.text.split()))
            else:
                await self._send(message.text)
        except SlipstreamError as error:
            await self._show_error(error)

    async def _send(self, typed: str) -> None:
        if self.loaded is None:
            self._await_model(typed)
            return
        text = typed.removeprefix(SLASH)
        self.turn = self._conversation.ask(text, self.loaded)
        self.ask.text = ""
        question = clean(text)
        self.said.append(f"{MARK}{question}")
        await self._begin_answer(Static(Content(f"{MARK}{question}"), classes="asked"))
        self._service.reply(self.turn.generate, self.turn.reply.id, self.turn.before)

    def _await_model(self, text: str) -> None:
        self._waiting = text
        if not self._service.busy:
            self._start()

    async def _begin_answer(self, *above: Static) -> None:
        self.text = self.shown = self._written = ""
        self._answer = Static(classes="answer")
        await self._column.mount(*above, self._answer)
        self._column.anchor()

    async def _command(self, words: str) -> None:
        if words not in (COMPACT, UNDO):
            hint = "Start slipstream without --inline for the other commands; // sends a message that begins with /."
            raise UsageError(f"only {COMPACT} and {UNDO} work here; nothing was sent.", hint)
        if words == UNDO:
            there = self._conversation.undo_compact()
            self.ask.text = ""
            await self._show("the model reads the summarized messages again." if there else "this chat has no summary.")
            return
        plan = self._conversation.compaction()
        if self.loaded is None:
            self._await_model(words)
            return
        self._summary, self.ask.text = (plan, self.loaded), ""
        await self._begin_answer()
        self._set_status(f"summarizing {plural(plan.count, 'message')} · Esc stops")
        self._service.summarize(self._conversation.summary_of(plan, self.loaded))

    @on(engine_service.SummaryDone)
    async def _summarized(self, message: engine_service.SummaryDone) -> None:
        under_way, self._summary = self._summary, None
        if not under_way or self._left:
            return
        plan, loaded = under_way
        await self._answer.remove()
        said = ["stopped; nothing was changed."]
        if message.text:
            try:
                self._conversation.compact(plan, message.text, loaded)
                said = [message.text, f"{plural(plan.count, 'message')} summarized; {UNDO} brings them back."]
            except SlipstreamError as error:
                said = [f"{error.title} {error.hint}".strip()]
        for words in said:
            await self._show(words)
        self._set_status("Enter sends · Esc leaves")

    @on(engine_service.LoadProgress)
    def _progress(self, message: engine_service.LoadProgress) -> None:
        self._set_status(message.words)

    @on(engine_service.MachineAwaited)
    def _machine_awaited(self, message: engine_service.MachineAwaited) -> None:
        self._set_status(f"waiting for {clean(message.names)} · Esc stops")

    @on(engine_service.ModelReady)
    async def _model_ready(self, message: engine_service.ModelReady) -> None:
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

    @on(engine_service.LoadFailed)
    def _load_failed(self, message: engine_service.LoadFailed) -> None:
        self.said.append(clean(f"{message.error.title} {message.error.hint}"))
        self.exit(message.error.code)

    @on(engine_service.ReplyStreamed)
    def _streamed(self, message: engine_service.ReplyStreamed) -> None:
        step = message.event
        if isinstance(step, Prefilling):
            words = f"reading {step.done:,} of {step.total:,} tokens"
            if self._summary:
                self._written = ""  # drop an intermediate summary: the last one covers all messages
                words = f"summarizing: {words} · Esc stops"
            self._set_status(words)
            return
        speed = step.speed
        self.text += "".join(piece.text for piece in step.pieces)
        self._written += clean("".join(piece.text for piece in step.parts.answer), self._written)
        self.shown = self._written.strip("\n")
        self._answer.update(Content(self.shown or "thinking\u2026"))
        pace = f"{rate(speed.tok_per_s)} tok/s" if speed.tok_per_s else ""
        if self._summary:
            pace = f"summarizing {plural(self._summary[0].count, 'message')}"
        self._set_status(" · ".join(filter(None, [pace, "Esc stops"])))

    @on(engine_service.ReplyDone)
    async def _done(self, message: engine_service.ReplyDone) -> None:
        done = message.done
        if not self.shown.strip():
            self.shown = f"({NO_ANSWER if self.text.strip() else 'no words came'})"
        self._answer.update(Content(self.shown))
        self._keep(self.shown)
        await self._show_failures(done.failed)
        for words, hint in done.remarks.items():
            await self._show(f"{words} {hint}")
        self.turn = None
        self._set_status("Enter sends · Esc leaves" if done.reason != "context" else "the context is full · Esc leaves")

    @on(engine_service.ReplyFailed)
    async def _failed(self, message: engine_service.ReplyFailed) -> None:
        turn, self.turn, error = self.turn, None, message.error
        if message.died:
            self.loaded = None
        if self._summary:
            self._summary = None
            await self._answer.remove()
            error = SlipstreamError(error.title, f"{error.hint} The chat is as it was.".strip())
        elif self.text:
            self._keep(self.shown)
        elif turn:  # refused before any text: give the question back
            self.ask.text = turn.asked.content
            with suppress(SlipstreamError):  # show the first error, not this one
                self._conversation.withdraw(turn)
        await self._show_error(error)

    @on(ChatsChanged)
    async def _chats_changed(self, message: ChatsChanged) -> None:
        await self._show(message.words)

    @on(engine_service.EngineEnded)
    def _ended(self) -> None:
        if not self._service.busy:
            self.loaded = None
            self._set_status("the engine has ended; the next message starts it again")

    async def _show_failures(self, failed: Mapping[str, str]) -> None:
        for words in failure_words(failed):
            await self._show(f"{words}.")

    async def _show_error(self, error: SlipstreamError) -> None:
        await self._show(f"{error.title} {error.hint}".strip())
        self._set_status("Enter sends · Esc leaves")

    async def _show(self, words: str) -> None:
        self.said.append(clean(words))
        await self._column.mount(Static(Content(clean(words)), classes="answer"))
