"""The widgets of the chat screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from textual.screen import Screen

from slipstream.app.chats.records import StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.events import Loaded, failure_words
from slipstream.app.tui.chat.conversation import Conversation
from slipstream.app.tui.chat.draft_panel import DraftPanel
from slipstream.app.tui.chat.prompt import Prompt
from slipstream.app.tui.chat.sidebar import Sidebar
from slipstream.app.tui.chat.status_bar import Strip
from slipstream.app.tui.chat.top_bar import TopBar
from slipstream.app.tui.chat.transcript import Transcript
from slipstream.app.tui.chat.unsent import NEW, Unsent
from slipstream.app.tui.chat.welcome import EXAMPLES, Welcome
from slipstream.app.tui.parts.notice import Notice, hint, trouble
from slipstream.models.errors import SlipstreamError, UsageError


class ChatPage:
    """The widgets of the chat screen, and the chat that they show."""

    def __init__(self, screen: Screen[None], store: ChatStore, conversation: Conversation, drafter: str) -> None:
        """Makes the widgets.

        Args:
            screen: The screen that shows them; it owns the timers, threads and dialogs of its parts.
        """
        self.screen = screen
        self.conversation = conversation
        self.sidebar = Sidebar(store)
        self.transcript = Transcript()
        self.drafts = DraftPanel()
        self.prompt = Prompt(store.prompts(), list(EXAMPLES))
        self.status = Strip(drafter, conversation.exact)
        self.top_bar = TopBar()
        self.welcome: Welcome | None = None  # shown in an empty chat; None otherwise
        self.unfinished = False  # whether the last reply can be continued
        self._store, self._unsent = store, Unsent(store.database.path.with_name("unsent.json"))
        self._typed_in: str | None = None  # the chat that the text in the prompt belongs to

    async def fill(self, messages: list[StoredMessage], at: int | None) -> None:
        """Shows the messages of a chat instead of the current ones.

        Args:
            at: Id of the message to scroll to; None scrolls to the end.
        """
        await self.transcript.fill(messages, at)
        self.mark_branches()
        self.unfinished = bool(messages) and messages[-1].unfinished
        self.show_title()

    def follow_prompt(self) -> None:
        """Stores the typed text with its chat, and restores the unsent text of the open chat."""
        chat = self.conversation.chat.id if self.conversation.chat else NEW
        if chat == self._typed_in:
            return
        if self._typed_in is not None:
            self._unsent.put(self._typed_in, self.prompt.whole)
        self._typed_in = chat
        if (text := self._unsent.of(chat)) != self.prompt.whole:
            self.prompt.put(text)

    def adopt_prompt(self) -> None:
        """Assigns the prompt to the chat that its first message has created."""
        if self._typed_in is not None:
            self._unsent.put(self._typed_in, "")
        self._typed_in = self.conversation.chat.id if self.conversation.chat else NEW

    def keep_prompt(self) -> None:
        """Stores the typed text for a restart."""
        if self._typed_in is not None:
            self._unsent.put(self._typed_in, self.prompt.whole)
            self._unsent.keep(self._has_chat)

    def _has_chat(self, chat: str) -> bool:
        try:
            self._store.get(chat)
        except UsageError:
            return False
        except SlipstreamError:
            pass  # the chat may exist: keeps the text
        return True

    async def show_welcome(self, model: str, loaded: Loaded | None) -> None:
        """Shows the welcome of an empty chat.

        Args:
            model: The model's display name until it is loaded.
        """
        self.welcome = Welcome(model)
        await self.transcript.add(self.welcome)
        if loaded:
            self.welcome.ready(loaded)

    async def end_welcome(self) -> None:
        welcome, self.welcome = self.welcome, None
        if welcome:
            await welcome.remove()

    async def show_earlier(self) -> None:
        """Mounts some older messages above the mounted ones."""
        await self.transcript.show_earlier(self.conversation.messages())
        self.mark_branches()

    async def show_later(self) -> None:
        """Mounts some newer messages below the mounted ones."""
        await self.transcript.show_later(self.conversation.messages())
        self.mark_branches()

    async def show_newest(self) -> None:
        if not self.transcript.whole:
            await self.transcript.fill(self.conversation.messages())
            self.mark_branches()
        self.transcript.to_end()

    def mark_branches(self) -> None:
        """Marks the messages that have alternatives."""
        self.transcript.mark(self.conversation.forks())

    def show_title(self) -> None:
        """Shows in the top bar and in the list which chat is open."""
        chat = self.conversation.chat
        self.top_bar.chat = chat.title if chat else ""
        self.list_chats()
        self.refresh_keys()

    def list_chats(self) -> None:
        self.sidebar.update(self.conversation.chat.id if self.conversation.chat else None)

    def check_unfinished(self) -> None:
        """Updates ``unfinished``."""
        with suppress(SlipstreamError):  # reported when the chat is used next
            self.unfinished = self.conversation.unfinished

    def show_colours(self, on: bool) -> None:
        self.transcript.colour(on)
        self.status.explain(on)

    def refresh_keys(self) -> None:
        self.screen.refresh_bindings()

    async def notice(self, error: SlipstreamError) -> None:
        """Adds an error to the transcript."""
        await self.transcript.add(Notice(error.title, error.hint))

    async def remark(self, words: str, hint: str = "") -> None:
        """Adds a remark to the transcript."""
        await self.transcript.add(Notice(words, hint, remark=True))

    async def name_failed(self, failed: Mapping[str, str]) -> None:
        """Adds a remark for each failed drafter."""
        for words in failure_words(failed):
            await self.remark(f"{words}.", "The text stays the same.")

    def hint(self, words: str) -> None:
        hint(self.screen, words)

    def tell_error(self, error: SlipstreamError) -> None:
        trouble(self.screen, error)

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """Shows an error of the body as a toast, and suppresses it."""
        try:
            yield
        except SlipstreamError as error:
            self.tell_error(error)
