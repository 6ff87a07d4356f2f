"""The parts of the chat's screen, the chat on them, and the model behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import Screen

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Loaded
from slipstream.app.engine.requests import Load
from slipstream.app.settings.values import Settings
from slipstream.app.tui.conversation import Conversation, Turn
from slipstream.app.tui.engine_room import EngineRoom
from slipstream.app.tui.messages import (
    LoadFailed,
    LoadProgress,
    ModelReady,
)
from slipstream.app.tui.toasts import hint, trouble
from slipstream.app.tui.widgets.draft_tree_panel import DraftPanel, Split
from slipstream.app.tui.widgets.key_bar import KeyBar
from slipstream.app.tui.widgets.notice import Notice
from slipstream.app.tui.widgets.prompt import Prompt
from slipstream.app.tui.widgets.reply import Reply
from slipstream.app.tui.widgets.sidebar import Sidebar
from slipstream.app.tui.widgets.strip import Strip
from slipstream.app.tui.widgets.top_bar import TopBar
from slipstream.app.tui.widgets.transcript import Transcript
from slipstream.app.tui.widgets.welcome import EXAMPLES, Welcome
from slipstream.models.errors import SlipstreamError

LOW = 18
"""Rows below which the strip is one line."""


class ChatView(Screen[None]):
    """Shows one chat and loads the model; ``TalkScreen`` asks it."""

    def __init__(self, room: EngineRoom, load: Load, store: ChatStore, conversation: Conversation, model: str) -> None:
        """Keeps the parts.

        Args:
            room: The engine's thread.
            load: What to load.
            store: All chats.
            conversation: The chat to begin with.
            model: What to call the model until it says its name.
        """
        super().__init__()
        self._room = room
        self._load = load
        self._store = store
        self._conversation = conversation
        self._loaded: Loaded | None = None
        self._drafter = load.drafter
        self._turn: Turn | None = None
        self._reply: Reply | None = None
        self._when_ready: Callable[[], Awaitable[None]] | None = None  # what was asked for before the model was loaded
        self._then: Callable[[], Awaitable[None]] | None = None  # what to do once the reply has ended
        self._retried = False  # the engine was started again for this question
        self._model = model
        self._welcome: Welcome | None = None
        self._unfinished = False  # whether the last reply could go on
        self._editing: int | None = None  # the earlier message whose other version is in the prompt
        self._set_aside = ""  # what was in the prompt before
        self._settings: Settings | None = None
        self.notes: list[str] = []
        """What to say at the start."""
        self.sidebar = Sidebar(store)
        self.transcript = Transcript()
        self.drafts = DraftPanel()
        self.prompt = Prompt(store.prompts(), list(EXAMPLES))
        self.strip = Strip(self._drafter, conversation.exact)
        self.top_bar = TopBar()

    @property
    def replying(self) -> bool:
        """Whether a reply is being written."""
        return self._turn is not None

    # --- what is seen ---------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """From top to bottom; the chats stand beside what was said."""
        yield self.top_bar
        with Horizontal(id="middle"):
            yield self.sidebar
            with Split():
                yield self.transcript
                yield self.drafts
        yield self.prompt.choices
        yield self.prompt
        yield self.strip
        yield KeyBar()
        yield self._room

    async def on_mount(self) -> None:
        """Shows the chat and begins to load the model behind it."""
        self.prompt.focus()
        self._start_loading()
        await self._show_chat()
        for note in self.notes:
            await self.transcript.add(Notice(note, remark=True))
        if self._store.notice:
            await self.transcript.add(Notice(self._store.notice, remark=True))

    def on_resize(self) -> None:
        """Gives a low screen a strip of one line, and a wide one the list of chats."""
        self.set_class(self.size.height < LOW, "low")
        self.sidebar.fit(self.size.width)
        self._list_chats()

    def _list_chats(self) -> None:
        self.sidebar.update(self._conversation.chat.id if self._conversation.chat else None)

    async def _show_chat(self, at: int | None = None) -> None:
        """Shows the conversation, or a welcome where nothing was said.

        Args:
            at: Number of a message to go to; None goes to the end.
        """
        self._welcome = None
        self._leave_edit()
        try:
            messages = self._conversation.messages()
            refused = self._conversation.refused()
        except SlipstreamError as error:
            await self.transcript.add(Notice(error.title, error.hint))
            return
        await self.transcript.fill(messages, at)
        self.transcript.mark(self._conversation.forks())
        self._unfinished = bool(messages) and messages[-1].unfinished
        self._list_chats()
        self.refresh_bindings()
        self.top_bar.chat = self._conversation.chat.title if self._conversation.chat else ""
        kept = next((m.figures for m in reversed(messages) if m.figures), None)
        self.top_bar.used = kept.prompt_tokens + kept.speed.tokens if kept else 0
        if refused and not self.prompt.text:
            self.prompt.put_message(refused)
        if not messages:
            self._welcome = Welcome(self._model)
            await self.transcript.add(self._welcome)
            if self._loaded:
                self._welcome.ready(self._loaded)

    def _leave_edit(self) -> None:
        """Gives the prompt back what was in it before an earlier message was edited."""
        if self._editing is not None:
            self._editing = None
            self.prompt.border_title = None
            self.prompt.put(self._set_aside)
            self.refresh_bindings()

    def _hint(self, text: str) -> None:
        hint(self, text)

    def _tell_error(self, error: SlipstreamError) -> None:
        trouble(self, error)

    # --- loading --------------------------------------------------------------------------------------------------

    def _start_loading(self) -> None:
        self.prompt.border_subtitle = "loading the model"
        self._room.load(self._load)

    @on(LoadProgress)
    def _load_progress(self, message: LoadProgress) -> None:
        first = "will be sent when the model is loaded: " if self._when_ready else ""
        self.prompt.border_subtitle = first + message.words
        if self._welcome:
            self._welcome.progress(message.share)

    @on(ModelReady)
    async def _model_ready(self, message: ModelReady) -> None:
        self._loaded = message.loaded
        self.prompt.border_subtitle = ""
        self.top_bar.loaded = message.loaded
        self.strip.promise(message.loaded.promise)
        if self._welcome:
            self._welcome.ready(message.loaded)
        if message.loaded.remark:
            await self.transcript.add(Notice(message.loaded.remark, remark=True))
        then, self._when_ready = self._when_ready, None
        if then:
            await then()

    @on(LoadFailed)
    async def _load_failed(self, message: LoadFailed) -> None:
        self._when_ready = None
        self.prompt.border_subtitle = "no model is loaded; Enter tries again"
        if self._welcome:
            self._welcome.failed()
        await self.transcript.add(Notice(message.error.title, message.error.hint))

    def _load_for(self, then: Callable[[], Awaitable[None]]) -> None:
        """Does something once the model is loaded; begins to load it if it is not on its way."""
        self._when_ready = then
        if not self._room.busy:
            self._start_loading()
        self.prompt.border_subtitle = "will be sent when the model is loaded"
