"""The chat screen: binds the keys, and dispatches messages to its parts."""

from __future__ import annotations

import time
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Markdown
from textual.worker import Worker, WorkerState

from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import NO_MMPROJ, Load
from slipstream.app.settings.presets import led_by
from slipstream.app.settings.values import Settings
from slipstream.app.tui.chat.benchmark import Benchmark
from slipstream.app.tui.chat.chat_list import ChatList
from slipstream.app.tui.chat.commands import Commands
from slipstream.app.tui.chat.compacting import Compacting
from slipstream.app.tui.chat.context_meter import ContextMeter
from slipstream.app.tui.chat.conversation import Conversation
from slipstream.app.tui.chat.downloads import Downloads
from slipstream.app.tui.chat.draft_panel import DraftPanel, Split
from slipstream.app.tui.chat.drafter_work import DrafterWork
from slipstream.app.tui.chat.guidance import Guidance
from slipstream.app.tui.chat.message import Said
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.prompt import Prompt
from slipstream.app.tui.chat.race import Races
from slipstream.app.tui.chat.reply import Reply
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.chat.selection import Editing, Selection
from slipstream.app.tui.chat.sidebar import Sidebar
from slipstream.app.tui.chat.transcript import Earlier, Later
from slipstream.app.tui.chat.typing_prefill import TypingPrefill
from slipstream.app.tui.chat.welcome import Example
from slipstream.app.tui.engine_service import (
    EngineEnded,
    EngineService,
    LoadFailed,
    LoadProgress,
    MachineAwaited,
    ModelReady,
    PromptCounted,
    ReplyDone,
    ReplyFailed,
    ReplyPrefilling,
    ReplyStreamed,
    SummaryDone,
    SummaryFailed,
    SummaryStreamed,
)
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.keys import named
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.parts.key_bar import KeyBar
from slipstream.app.tui.parts.notice import ChatsChanged
from slipstream.models.errors import SlipstreamError

KEEP_PROMPT = 2.0  # seconds between two times that unsent text is stored
LOW = 18  # screen height below which the status bar has one line
QUIT_WITHIN = 2.0  # seconds within which a second Ctrl-C quits
IN_THE_LIST = frozenset({"search", "thoughts", "retry", "page", "go", "top", "bottom", "select"})
"""Actions and commands that are disabled while the list of chats has the focus, because it uses their keys."""


# default keys of the chat; the settings can change them
KEYS: Final[list[BindingType]] = named(
    [
        Binding("escape", "command('stop')", "Stop", id="stop", key_display="Esc"),
        Binding("escape", "command('leave-edit')", "Leave it", key_display="Esc", id="stop"),
        Binding("ctrl+g", "command('go')", "Go on", priority=True, id="go-on"),
        Binding("f1", "app.help", "Help"),
        Binding("f2", "command('next')", "Next drafter", show=False, id="next-drafter"),
        Binding("ctrl+d", "command('drafter')", "Drafters", priority=True, id="drafters"),
        Binding("f3", "command('colours')", "Colours", id="colours"),
        Binding("f4", "command('trees')", "Guesses", id="trees"),
        Binding("f6", "command('offer')", "Fetch a model", show=False, id="offer"),
        Binding("ctrl+l", "command('models')", "Models", priority=True, id="models"),
        Binding("alt+n", "command('new')", "New", priority=True, id="new-chat", key_display="^n"),
        Binding("ctrl+o", "command('chats')", "Chats", priority=True, id="chats"),
        Binding(
            "ctrl+up,alt+up", "command('select', '-1')", "Messages", show=False, priority=True, id="message-before"
        ),
        Binding(
            "ctrl+down,alt+down",
            "command('select', '1')",
            "Next message",
            show=False,
            priority=True,
            id="message-after",
        ),
        Binding("f9", "app.settings", "Settings", show=False),
        Binding("f5", "command('retry')", "Again", show=False, priority=True, id="again"),
        Binding("f8", "command('bench')", "Benchmark", show=False, priority=True, id="bench"),
        Binding("ctrl+r", "command('search')", "Search prompts", show=False, priority=True, id="recall"),
        Binding("ctrl+t", "command('thoughts')", "Thoughts", show=False, priority=True, id="thoughts"),
        Binding("alt+t", "command('next-thinking')", "More or less thinking", show=False, priority=True, id="thinking"),
        Binding("alt+a", "command('answer-now')", "Stop thinking now", show=False, priority=True, id="answer-now"),
        Binding("ctrl+y", "command('copy')", "Copy reply", show=False, priority=True, id="copy-reply"),
        Binding("ctrl+q", "app.quit", "Quit", priority=True),
        Binding("ctrl+p", "history(-1)", "Earlier prompts", show=False, priority=True, id="prompt-before"),
        Binding("ctrl+n", "history(1)", "Later prompts", show=False, priority=True, id="prompt-after"),
        Binding("ctrl+c", "interrupt", "Copy, stop or quit", show=False, priority=True),
        Binding("pageup", "command('page', '-1')", "Page up", show=False, priority=True, id="page-up"),
        Binding("pagedown", "command('page', '1')", "Page down", show=False, priority=True, id="page-down"),
        Binding("ctrl+home", "command('top')", "Top", show=False, priority=True, id="top"),
        Binding("ctrl+end", "command('bottom')", "Newest", show=False, priority=True, id="bottom"),
    ]
)


class ChatScreen(Screen[None]):
    """Shows one chat, and dispatches messages between its parts and the engine."""

    BINDINGS: ClassVar[list[BindingType]] = KEYS

    def __init__(
        self,
        engine: EngineService,
        load: Load,
        store: ChatStore,
        conversation: Conversation,
        model: str,
        models: ModelsAccess,
    ) -> None:
        """Creates the parts of the screen.

        Args:
            model: The model's display name until it is loaded.
        """
        super().__init__()
        self._store = store
        self.engine, self.conversation = engine, conversation
        self.page = page = ChatPage(self, store, conversation, load.drafter)
        self.sidebar, self.transcript, self.drafts = page.sidebar, page.transcript, page.drafts
        self.prompt, self.status, self.top_bar = page.prompt, page.status, page.top_bar
        self.editing, self.context = Editing(page), ContextMeter(page)
        self.guidance = Guidance(page, lambda: self.model.loaded, lambda: self.model.not_loaded)
        self.model = ChatModel(page, engine, models, load, model, self.show_chat)
        self.compacting = Compacting(page, engine, self.context)
        self.reply = Replying(page, engine, self.model, self.editing, self.context, self.compacting, self.show_chat)
        self.typing = TypingPrefill(page, engine, self.model, self.editing, self.reply)
        self.selection = Selection(page)
        self.chats = ChatList(page, store, self.reply, self.show_chat)
        self.downloads = Downloads(page, models, self.model, self.reply)
        self.jobs = Jobs(self._show_work)
        self.drafters = DrafterWork(page, self.model, self.reply, self.jobs)
        self.benchmark = Benchmark(page, engine, self.model, self.reply, self.jobs)
        self.races = Races(page, engine, self.model, self.reply, self.jobs)
        self.commands = Commands(
            page, engine, self.editing, self.reply, self.model, self.chats, self.selection, self.guidance,
            self.downloads, self.drafters, self.benchmark, self.races,
        )  # fmt: skip
        self.notes: list[str] = []  # remarks to show at the start
        self._interrupted = 0.0  # time of the last Ctrl-C

    # --- display --------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield self.top_bar
        with Horizontal(id="middle"):
            yield self.sidebar
            with Split():
                yield self.transcript
                yield self.drafts
        yield self.prompt.choices
        yield self.prompt
        yield self.status
        yield KeyBar()
        yield self.engine

    async def on_mount(self) -> None:
        """Shows the chat, and starts loading the model in a thread."""
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
        """Uses a status bar of one line on a low screen, and lays out the list of chats for the width."""
        self.set_class(self.size.height < LOW, "low")
        self.sidebar.fit(self.size.width)
        self.page.list_chats()

    async def show_chat(self, at: int | None = None) -> None:
        """Shows the open chat, or a welcome if it is empty.

        Args:
            at: Id of the message to scroll to; None scrolls to the end.
        """
        self.page.welcome = None
        self.editing.leave()
        self.page.follow_prompt()
        await self.context.clear()
        try:
            messages, refused = self.conversation.messages(), self.conversation.refused()
        except SlipstreamError as error:
            await self.page.notice(error)
            messages = []
        else:
            await self.page.fill(messages, at)
            await self.context.show(messages)
            if refused and not self.prompt.text:
                self.prompt.put_message(refused)
            if not messages:
                await self.page.show_welcome(self.model.name, self.model.loaded)
        self.drafts.fill(message.figures for message in messages if message.figures)
        self.typing.read()
        self.downloads.show_offer()
        self.guidance.show()

    def apply_settings(self, now: Settings, before: Settings | None) -> None:
        """Applies the settings.

        Args:
            before: The previous settings; None at the start.
        """
        self.engine.ahead = now.ahead
        self.model.apply_settings(now)
        if before:
            self.conversation.settle(now.sampling.sampling(seed=0), led_by(now.reply))
            self.guidance.show()
        if before is None or before.screen.sidebar != now.screen.sidebar:
            self.sidebar.begin(now.screen.sidebar)
        if now.screen.colours != (before.screen.colours if before else False):
            self.page.show_colours(now.screen.colours)
        self.page.transcript.show_formulas(now.screen.formulas)

    def _show_work(self) -> None:
        self.drafters.show()
        self.benchmark.show()

    # --- the engine -----------------------------------------------------------------------------------------------

    @on(LoadProgress)
    def _load_progress(self, message: LoadProgress) -> None:
        self.model.progress(message)

    @on(ModelReady)
    async def _model_ready(self, message: ModelReady) -> None:
        if self.model.known is None:
            self.benchmark.keep_cut_short()
        self.drafters.fresh = False
        self.downloads.look_for_offer_soon()
        self.conversation.suggest(message.loaded.sampling)
        self.guidance.show()
        self.typing.read()
        await self.model.ready(message.loaded)

    @on(LoadFailed)
    async def _load_failed(self, message: LoadFailed) -> None:
        await self.model.failed(message.error)

    @on(EngineEnded)
    async def _engine_ended(self, message: EngineEnded) -> None:
        if not self.engine.busy:  # else a request has restarted it meanwhile
            self.model.died()
            await self.page.notice(message.error)

    @on(MachineAwaited)
    def _machine_awaited(self, message: MachineAwaited) -> None:
        if self.engine.busy and self.model.loaded is None:
            self.model.wait(message.names)
            self.refresh_bindings()
        else:
            self.page.hint(f"Waiting for {message.names}. Esc stops.")

    @on(PromptCounted)
    async def _prompt_counted(self, message: PromptCounted) -> None:
        if not self.reply.writing:
            await self.context.counted(message.counted)

    @on(ReplyPrefilling)
    def _prefilling(self, message: ReplyPrefilling) -> None:
        self.context.prefilling(message.event)
        self.reply.prefilling(message.event)

    @on(ReplyStreamed)
    def _streamed(self, message: ReplyStreamed) -> None:
        self.drafts.stepped(message.step)
        self.context.stepped(message.step)
        self.reply.stepped(message.step)

    @on(ReplyDone)
    async def _done(self, message: ReplyDone) -> None:
        self.drafts.end(message.done)
        await self.context.done(message.done)
        await self.reply.done(message.done)
        self.typing.read()

    @on(ReplyFailed)
    async def _failed(self, message: ReplyFailed) -> None:
        self.drafts.end(None)
        await self.reply.failed(message)
        self.typing.read()

    @on(SummaryStreamed)
    def _summary_streamed(self, message: SummaryStreamed) -> None:
        self.compacting.streamed(message)

    @on(SummaryDone)
    async def _summary_done(self, message: SummaryDone) -> None:
        await self.compacting.done(message.text)
        self.typing.read()

    @on(SummaryFailed)
    async def _summary_failed(self, message: SummaryFailed) -> None:
        if message.died:
            self.model.died()
        await self.compacting.failed(message.error)
        self.typing.read()

    @on(Worker.StateChanged)
    def _work_failed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR and event.worker.group == "jobs":
            fault = f"Internal error: {event.worker.error!r}."
            self.page.tell_error(SlipstreamError(fault, "Please report this."))

    # --- the prompt -----------------------------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _sent(self, message: Prompt.Sent) -> None:
        await self.reply.send(message.text)

    @on(Prompt.Changed)
    def _text_changed(self) -> None:
        self.typing.text_changed()

    @on(Prompt.Attached)
    def _attached(self, message: Prompt.Attached) -> None:
        image, loaded = message.attachment.image, self.model.loaded
        if image:
            try:
                self.conversation.keep_image(image)
            except SlipstreamError as error:
                self.page.tell_error(error)
            if loaded and not loaded.images:
                self.page.hint(f"{loaded.name} cannot see images. {NO_MMPROJ}")
        room = loaded.n_ctx if loaded else 0
        if room and message.attachment.tokens > room:
            self.page.hint(f"{message.attachment.label}: more than the {room:,} that this model takes.")

    @on(Prompt.Commanded)
    async def _commanded(self, message: Prompt.Commanded) -> None:
        await self.commands.typed(message.text)

    # --- the chat -------------------------------------------------------------------------------------------------

    @on(Sidebar.Left)
    def _list_left(self) -> None:
        self.chats.leave()

    @on(Sidebar.Opened)
    async def _chat_chosen(self, event: Sidebar.Opened) -> None:
        await self.chats.chosen(event.chat, event.message)

    @on(Sidebar.Asked)
    async def _chat_asked(self, event: Sidebar.Asked) -> None:
        await self.chats.asked(event)

    @on(Said.Typed)
    def _typed_on(self, message: Said.Typed) -> None:
        self.selection.typed(message)

    @on(Reply.CodeWanted)
    def _code_clicked(self, message: Reply.CodeWanted) -> None:
        self.selection.take_code(message.code)

    @on(Earlier.Wanted)
    async def _earlier(self) -> None:
        await self.page.show_earlier()

    @on(Later.Wanted)
    async def _later(self) -> None:
        await self.page.show_later()

    @on(DraftPanel.Left)
    def _drafts_left(self) -> None:
        self.prompt.focus()

    @on(Example.Picked)
    def _picked(self, message: Example.Picked) -> None:
        self.prompt.put(message.text)
        self.prompt.focus()

    @on(Markdown.LinkClicked)
    def _link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Copies the address instead of opening it."""
        self.app.copy_to_clipboard(message.href)
        self.page.hint("Copied the address; slipstream opens no links.")

    # --- keys -----------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        name = str(parameters[0]) if action == "command" else action
        if name in IN_THE_LIST and self.sidebar.has_focus_within:
            return False
        if name == "page" and self.drafts.has_focus_within:
            return False
        writing = self.reply.writing
        offered = {
            "branch": self.selection.branches,
            "stop": writing or self.model.awaits,
            "deselect": not writing,  # Esc stops first
            "leave-edit": not writing and self.editing.message is not None,
            "go": self.page.unfinished,
            "offer": self.downloads.offer is not None,
        }
        return offered.get(name, True)

    async def action_command(self, name: str, argument: str = "") -> None:
        await self.commands.do(name, argument)

    async def action_history(self, step: int) -> None:
        """Steps through the prompt history if possible; else opens the command palette (-1) or a new chat (1)."""
        if self.prompt.has_focus and (step < 0 or self.prompt.recalling):
            self.prompt.recall(step)
        elif step < 0:
            self.app.action_command_palette()
        else:
            await self.commands.do("new")

    def action_interrupt(self) -> None:
        """Copies the selection, else stops the reply, else clears the prompt, else quits if pressed twice."""
        selected = self.get_selected_text() or self.prompt.selected_text
        now = time.monotonic()
        if selected:
            self.app.copy_to_clipboard(selected)
        elif self.reply.writing:
            self.reply.stop()
        elif self.prompt.text.strip():
            self.prompt.clear_typed()
            self.page.hint("Cleared; Up brings it back.")
        elif now - self._interrupted < QUIT_WITHIN:
            self.app.exit()
        else:
            self._interrupted = now
            self.page.hint("Ctrl-C once more quits.")
