"""The chat screen: lays out the widgets, runs the commands, and passes messages to the parts."""

import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Stepped
from slipstream.app.protocol.requests import NO_MMPROJ, Load
from slipstream.app.settings.presets import led_by
from slipstream.app.settings.values import Settings, Value
from slipstream.app.tui import engine_service
from slipstream.app.tui.chat.background import Benchmark, DrafterWork, Races
from slipstream.app.tui.chat.chat_switcher import ChatSwitcher
from slipstream.app.tui.chat.commands import COMMANDS, KEYS, MARK, Command, CommandRequest, parsed
from slipstream.app.tui.chat.conversation import Conversation
from slipstream.app.tui.chat.draft_panel import SplitView
from slipstream.app.tui.chat.guidance import Guidance
from slipstream.app.tui.chat.model import ActiveModel
from slipstream.app.tui.chat.model_picker import OFFER_AFTER, ModelPicker
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.prompt import PromptBox
from slipstream.app.tui.chat.replying import ReplyWriter, TypingPrefill
from slipstream.app.tui.chat.selection import Selection
from slipstream.app.tui.engine_service import EngineService
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.parts.notice import ChatsChanged
from slipstream.models.errors import SlipstreamError

KEEP_PROMPT: Final = 2.0  # seconds between two times that unsent text is stored
LOW: Final = 18  # screen height below which the status bar has one line
QUIT_WITHIN: Final = 2.0  # seconds within which a second Ctrl-C quits
IN_THE_LIST: Final = frozenset({"search", "thoughts", "retry", "page", "go", "top", "bottom", "select"})
"""Commands that are disabled while the list of chats has the focus, because it uses their keys."""
WHILE_IDLE: Final = frozenset({"edit", "branch", "delete", "undelete"})  # refused while a reply is being generated
OF_THE_APP: Final = {command.name: f"app.{command.app}" for command in COMMANDS if command.app}


class ChatScreen(Screen[None]):
    """Shows one chat; each part has its own state, and the screen passes it the messages of the others."""

    BINDINGS: ClassVar[list[BindingType]] = KEYS

    def __init__(
        self, engine: EngineService, load: Load, store: ChatStore, chat: Conversation, model: str, models: ModelsAccess
    ) -> None:
        super().__init__()
        self._store = store
        self.engine, self.conversation = engine, chat
        self.page = page = ChatPage(self, store, chat)
        self.sidebar, self.transcript, self.drafts = page.sidebar, page.transcript, page.drafts
        self.prompt, self.status, self.top_bar = page.prompt, page.status, page.top_bar
        self.jobs = Jobs(self._show_work)
        self.model = ActiveModel(page, engine, models, load, name=model, show=self.show_chat)
        self.reply = ReplyWriter(page, engine, self.model, self.show_chat)
        self.typing = TypingPrefill(page, engine, self.model, self.reply)
        self.selection = Selection(page)
        self.guidance = Guidance(page, self.model)
        self.chats = ChatSwitcher(page, store, self.reply, self.show_chat)
        self.picker = ModelPicker(page, models, self.model, self.reply)
        self.drafters = DrafterWork(page, self.model, self.reply, self.jobs)
        self.benchmark = Benchmark(page, engine, self.model, self.reply, self.jobs)
        self.races = Races(page, engine, self.model, self.reply, self.jobs)
        self.prompt.arguments = {
            "preset": self.guidance.named_presets,
            "system": self.guidance.named_systems,
            "drafter": self.model.named_drafters,
            "model": self.picker.named_models,
        }
        self.notes: list[str] = []  # remarks to show at the start
        # stores settings by name, None for the default, and applies them; the settings set this function
        self.keep: Callable[[Mapping[str, Value | None]], None] = lambda _values: None
        self._interrupted = 0.0  # time of the last Ctrl-C
        self._commands: dict[str, Callable[..., Any]] = {
            "new": lambda: self.reply.after(self.chats.begin),
            "chats": self.chats.toggle,
            "undelete": self._undelete,
            "delete": self.selection.delete,
            "export": self.chats.export_as,
            "search": self.chats.recall,
            "retry": self.reply.again,
            "go": self.reply.go_on,
            "dry": self.reply.again_without_repeats,
            "fork": self.fork,
            "compact": self.reply.compact,
            "answer-now": self.reply.end_thoughts,
            "stop": self.reply.stop,
            "attach": self.prompt.attach,
            "system": self.guidance.use_system,
            "preset": self.guidance.use_preset,
            "panel": lambda: self.guidance.open_panel(self._take_context),
            "keep-system": self.guidance.keep_system,
            "keep-preset": self.guidance.keep_preset,
            "think": self.guidance.use_reasoning,
            "next-thinking": self.guidance.next_reasoning,
            "seed": self.guidance.take_seed,
            "temp": self.guidance.take_temperature,
            "model": self.picker.use_named,
            "models": self.picker.open_manager,
            "offer": self.picker.take_offer,
            "context": self._take_context,
            "drafter": self.drafters.use,
            "next": self.model.next_drafter,
            "guess": self.reply.show_guesses,
            "race": self.races.open,
            "bench": self.benchmark.open,
            "colours": lambda: self.keep({"screen.colours": not self.transcript.coloured or None}),
            "trees": lambda: self.keep({"screen.guesses": not self.drafts.display or None}),
            "page": self.transcript.page,
            "top": self.transcript.to_top,
            "bottom": self.page.show_newest,
            "newer": self.page.show_newer,
            "select": self.selection.move,
            "deselect": self.selection.leave,
            "edit": self.selection.edit,
            "leave-edit": self.page.leave_edit,
            "to-prompt": self.prompt.focus,
            "again": lambda: self.reply.again(self.selection.message),
            "branch": self.selection.show_branch,
            "copy": self.selection.copy_reply,
            "copy-selected": self.selection.copy,
            "copy-code": self.selection.copy_code,
            "editor": self.selection.open_in_editor,
            "thoughts": self.selection.fold_reasoning,
            "type": self.selection.type,
            "take-code": self.selection.take_code,
            "leave-list": self.chats.leave,
            "open": self.chats.chosen,
            "manage": self.chats.manage,
            "more": self.page.show_more,
            "try": self.prompt.try_example,
            "typed": self.run_typed,
        }

    # --- display --------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield self.top_bar
        with Horizontal(id="middle"):
            yield self.sidebar
            with SplitView():
                yield self.transcript
                yield self.drafts
        yield self.prompt.choices
        yield self.prompt
        yield self.status
        yield KeyBar()
        yield self.engine

    async def on_mount(self) -> None:
        self.prompt.focus()
        self.model.start()
        await self.show_chat()
        for note in self.notes:
            await self.page.remark(note)
        self._store.listen(lambda words: self.post_message(ChatsChanged(words)))
        self.set_interval(KEEP_PROMPT, self.page.keep_prompt)

    @on(ChatsChanged)
    async def _chats_changed(self, message: ChatsChanged) -> None:
        await self.page.remark(message.words)
        self.page.list_chats()

    def on_resize(self) -> None:
        self.set_class(self.size.height < LOW, "low")
        self.sidebar.fit(self.size.width)
        self.page.list_chats()

    async def show_chat(self, at: int | None = None) -> None:
        self.page.welcome = None
        self.page.leave_edit()
        self.page.follow_prompt()
        await self.page.meter.clear()
        try:
            messages, refused = self.conversation.messages(), self.conversation.refused()
        except SlipstreamError as error:
            await self.page.notice(error)
            messages = []
        else:
            await self.page.fill(messages, at)
            await self.page.meter.show(messages)
            if refused and not self.prompt.text:
                self.prompt.put_message(refused)
            if not messages:
                await self.page.show_welcome(self.model.name, self.model.loaded)
        self.drafts.fill(message.figures for message in messages if message.figures)
        await self.picker.name_writer(messages)
        self.typing.read()
        self.picker.show_offer()
        self.guidance.show()

    def apply_settings(self, now: Settings, before: Settings | None) -> None:
        self.engine.ahead = now.ahead
        self.model.apply_settings(now)
        if before:
            self.conversation.apply_settings(now.sampling.sampling(seed=0), led_by(now.reply))
            self.guidance.show()
        if before is None or before.screen.sidebar != now.screen.sidebar:
            self.sidebar.begin(now.screen.sidebar)
        if now.screen.colours != (before.screen.colours if before else False):
            self.page.show_colours(now.screen.colours)
        if now.screen.guesses != (before.screen.guesses if before else False):
            self._show_drafts(now.screen.guesses)
        self.page.transcript.show_formulas(now.screen.formulas)

    def _show_work(self) -> None:
        self.drafters.show()
        self.benchmark.show()

    # --- the engine -----------------------------------------------------------------------------------------------

    @on(engine_service.LoadProgress)
    def _load_progress(self, message: engine_service.LoadProgress) -> None:
        self.model.progress(message)

    @on(engine_service.ModelReady)
    async def _model_ready(self, message: engine_service.ModelReady) -> None:
        if self.model.known is None:
            self.benchmark.keep_cut_short()
        self.drafters.fresh = False
        self.set_timer(OFFER_AFTER, self.picker.look_for_offer)
        self.conversation.take_advice(message.loaded.sampling)
        self.guidance.show()
        self.typing.read()
        await self.model.ready(message.loaded)
        with suppress(SlipstreamError):  # an unreadable chat was already reported
            await self.picker.name_writer(self.conversation.messages())

    @on(engine_service.LoadFailed)
    async def _load_failed(self, message: engine_service.LoadFailed) -> None:
        await self.model.failed(message.error)

    @on(engine_service.EngineEnded)
    async def _engine_ended(self, message: engine_service.EngineEnded) -> None:
        if not self.engine.busy:  # else a request has restarted it meanwhile
            self.model.died()
            await self.page.notice(message.error)

    @on(engine_service.MachineAwaited)
    def _machine_awaited(self, message: engine_service.MachineAwaited) -> None:
        if self.engine.busy and self.model.loaded is None:
            self.model.wait(message.names)
            self.refresh_bindings()
        else:
            self.page.hint(f"Waiting for {message.names}. Esc stops.")

    @on(engine_service.PromptCounted)
    async def _prompt_counted(self, message: engine_service.PromptCounted) -> None:
        if not self.reply.writing:
            await self.page.meter.counted(message.counted)

    @on(engine_service.ReplyStreamed)
    def _streamed(self, message: engine_service.ReplyStreamed) -> None:
        event = message.event
        if self.reply.summary.streamed(event):
            return
        if isinstance(event, Stepped):
            self.drafts.stepped(event)
            self.page.meter.stepped(event)
            self.reply.stepped(event)
        else:
            self.page.meter.prefilling(event)
            self.reply.prefilling(event)

    @on(engine_service.ReplyDone)
    async def _done(self, message: engine_service.ReplyDone) -> None:
        self.drafts.end(message.done)
        await self.page.meter.done(message.done)
        await self.reply.done(message.done)
        self.picker.writer = None
        self.typing.read()

    @on(engine_service.ReplyFailed)
    async def _failed(self, message: engine_service.ReplyFailed) -> None:
        self.drafts.end(None)
        await self.reply.failed(message)
        self.typing.read()

    @on(engine_service.SummaryDone)
    async def _summary_done(self, message: engine_service.SummaryDone) -> None:
        await self.reply.summary.done(message.text)
        self.typing.read()

    @on(Worker.StateChanged)
    def _work_failed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR and event.worker.group == "jobs":
            fault = f"Internal error: {event.worker.error!r}."
            self.page.tell_error(SlipstreamError(fault, "Please report this."))

    # --- the prompt -----------------------------------------------------------------------------------------------

    @on(PromptBox.MessageSent)
    async def _sent(self, message: PromptBox.MessageSent) -> None:
        await self.reply.send(message.text)

    @on(PromptBox.Changed)
    def _text_changed(self) -> None:
        self.typing.text_changed()

    @on(PromptBox.Attached)
    def _attached(self, message: PromptBox.Attached) -> None:
        image, loaded = message.attachment.image, self.model.loaded
        if image:
            with self.page.errors_told():
                self.conversation.keep_image(image)
            if loaded and not loaded.images:
                self.page.hint(f"{loaded.name} cannot see images. {NO_MMPROJ}")
        room = loaded.n_ctx if loaded else 0
        if room and message.attachment.tokens > room:
            self.page.hint(f"{message.attachment.label}: more than the {room:,} that this model takes.")

    @on(CommandRequest)
    async def _command_asked(self, message: CommandRequest) -> None:
        await self._run(message.name, *message.arguments)

    # --- keys -----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        name = str(parameters[0]) if action == "command" else action
        if name in IN_THE_LIST and self.sidebar.has_focus_within:
            return False
        if name == "page" and self.drafts.has_focus_within:
            return False
        match name:  # only what the action needs: each key is checked whenever the bar below is drawn
            case "branch":
                return self.selection.branches
            case "stop":
                return self.reply.writing or self.model.awaits
            case "deselect":  # Esc stops first
                return not self.reply.writing
            case "leave-edit":
                return self.page.editing is not None and not self.reply.writing
            case "go":
                return self.conversation.unfinished
            case "offer":
                return bool(self.picker.offers) or self.picker.writer is not None
        return True

    # --- commands -------------------------------------------------------------------------------------------------

    async def action_command(self, name: str, *arguments: Any) -> None:
        await self._run(name, *arguments)

    async def _run(self, name: str, *arguments: Any) -> bool:
        try:
            if name in OF_THE_APP:
                await self.run_action(OF_THE_APP[name])
            elif name not in WHILE_IDLE or not self.reply.refuses():
                done = self._commands[name](*arguments)
                if inspect.isawaitable(done):
                    await done
        except SlipstreamError as error:
            self.page.tell_error(error)
            return False
        return True

    async def run_typed(self, text: str) -> None:
        """Runs a typed command; a failed one stays in the prompt."""
        before = self.prompt.text
        command, argument = parsed(text)
        if await self._run(command.name, *([argument] if command.argument else [])):
            self.prompt.remember_typed(text)
            if self.prompt.text == before:
                self.prompt.put("")

    async def _undelete(self) -> None:
        if not await self.selection.undo_delete():
            await self.chats.undo_delete()

    async def fork(self) -> None:
        if not self.reply.refuses():
            await self.chats.open(self.conversation.fork(self.selection.message))
            self.page.hint("This is a new chat; the one before is in the list (Ctrl-O).")

    async def choose(self, command: Command) -> None:
        if command.needs:
            self.prompt.begin(f"{MARK}{command.name} ")
        else:
            await self._run(command.name)

    async def _take_context(self, text: str = "") -> None:
        if not text or not self.reply.refuses():
            await self.model.take_context(text)

    def _show_drafts(self, shown: bool) -> None:
        if not shown and self.drafts.has_focus_within:
            self.prompt.focus()
        self.drafts.display = shown
        self.engine.watch_drafts(shown)

    # --- keys -----------------------------------------------------------------------------------------------------

    async def action_history(self, step: int) -> None:
        """Steps through the prompt history if possible; else opens the command palette (-1) or a new chat (1)."""
        if self.prompt.has_focus and (step < 0 or self.prompt.recalling):
            self.prompt.recall(step)
        elif step < 0:
            self.app.action_command_palette()
        else:
            await self._run("new")

    def action_interrupt(self) -> None:
        """Copies the selection, else stops the reply, else clears the prompt, else quits if pressed twice."""
        selected = self.get_selected_text() or self.prompt.selected_text
        now = time.monotonic()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.page.hint("Copied what is selected.")
        elif self.reply.writing:
            self.reply.stop()
        elif self.prompt.text.strip():
            self.prompt.remember_typed(self.prompt.text)
            self.prompt.put("")
            self.page.hint("Cleared; Up brings it back.")
        elif now - self._interrupted < QUIT_WITHIN:
            self.app.exit()
        else:
            self._interrupted = now
            self.page.hint("Ctrl-C once more quits.")
