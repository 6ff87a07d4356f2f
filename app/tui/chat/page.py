"""The widgets of the chat screen, and the text that is typed but not sent."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from textual.content import Content
from textual.screen import Screen

from slipstream.app.chats.records import StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.paths import write_private
from slipstream.app.platform.safe_text import one_line, shortened
from slipstream.app.protocol.events import Loaded, failure_words
from slipstream.app.tui.chat.bars import ContextMeter, StatusBar, TopBar
from slipstream.app.tui.chat.commands import literal
from slipstream.app.tui.chat.conversation import Conversation
from slipstream.app.tui.chat.draft_panel import DraftPanel
from slipstream.app.tui.chat.message import Question
from slipstream.app.tui.chat.prompt import PromptBox
from slipstream.app.tui.chat.sidebar import Sidebar
from slipstream.app.tui.chat.transcript import Transcript
from slipstream.app.tui.chat.welcome import STORY, Welcome, examples
from slipstream.app.tui.parts.notice import Notice, hint, trouble
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.outside import read_object

_LARGEST: Final = 8 << 20  # maximum bytes of the file
NEW: Final = ""  # key of a new chat, which is not stored yet
WAITS: Final = " · Esc takes it back"
NEWER: Final = "↓ newer text: Ctrl-End"
LARGER: Final = "Ctrl-L lists larger ones."


class Unsent:
    """Unsent texts by chat; without a file, they are kept only until the program ends."""

    def __init__(self, path: Path | None) -> None:
        """Reads the file; an unreadable one counts as empty."""
        self._path = path
        self._texts: dict[str, str] = {}
        self._kept = True  # whether the file is up to date
        if path:
            self._texts = {chat: text for chat, text in read_object(path, _LARGEST).items() if isinstance(text, str)}

    def of(self, chat: str) -> str:
        return self._texts.get(chat, "")

    def put(self, chat: str, text: str) -> None:
        if text == self.of(chat):
            return
        self._kept = False
        self._texts.pop(chat, None)
        if text.strip():
            self._texts[chat] = text

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Writes the file if anything changed, without texts of deleted chats: those of which ``is_kept`` is false."""
        gone = [chat for chat in self._texts if chat != NEW and not is_kept(chat)]
        for chat in gone:
            del self._texts[chat]
        if self._path is None or (self._kept and not gone):
            return
        self._kept = True
        with suppress(OSError, SlipstreamError):  # a full disk is reported when a chat is stored
            if self._texts:
                write_private(self._path, json.dumps(self._texts))
            else:
                self._path.unlink(missing_ok=True)


class ChatPage:
    """The widgets of the chat screen, and the chat that they show."""

    def __init__(self, screen: Screen[None], store: ChatStore, conversation: Conversation) -> None:
        self.screen = screen
        self.conversation = conversation
        self.sidebar = Sidebar(store)
        self.transcript = Transcript()
        self.drafts = DraftPanel()
        said = store.prompts()
        self._told = STORY in said  # whether an earlier start showed guesses
        self.prompt = PromptBox(said)
        self.status = StatusBar(lambda: conversation.drafter, conversation.exact)
        self.top_bar = TopBar()
        self.meter = ContextMeter(self.top_bar, self.transcript, conversation)
        self.welcome: Welcome | None = None  # shown in an empty chat; None otherwise
        self.waiting = ""  # the message that is sent when the reply has ended; empty for none
        self.larger = LARGER  # what to try where guessing gains nothing
        self.editing: int | None = None  # id of the earlier question that the prompt replaces
        self._said = ""  # what the prompt's border says of the model
        self._set_aside = ""  # what was in the prompt before
        self._store, self._unsent = store, Unsent(store.database.path.with_name("unsent.json"))
        self._typed_in: str | None = None  # the chat that the text in the prompt belongs to

    async def fill(self, messages: list[StoredMessage], at: int | None) -> None:
        await self.transcript.fill(messages, at)
        self.mark_branches()
        self.show_title()

    def edit(self, question: Question) -> None:
        if self.editing is None:
            self._set_aside = self.prompt.text
        self.editing = question.message
        self.prompt.put_message(question.text)
        self.prompt.border_title = "Editing an earlier message · Esc cancels"
        self.screen.set_focus(self.prompt)
        self.refresh_keys()

    def wait(self, text: str) -> None:
        self.waiting = text
        room = max(self.prompt.size.width - len(WAITS) - 4, 8)
        self.prompt.border_title = Content(f"next: {shortened(one_line(text), room)}{WAITS}")
        self.prompt.put("")
        self.refresh_keys()

    def take_waiting(self) -> str:
        text, self.waiting = self.waiting, ""
        self.prompt.border_title = None
        self.refresh_keys()
        return text

    def leave_edit(self) -> None:
        if self.editing is not None:
            self.editing = None
            self.prompt.border_title = None
            self.prompt.put(self._set_aside)
            self.refresh_keys()

    def follow_prompt(self) -> None:
        chat = self.conversation.chat.id if self.conversation.chat else NEW
        if chat == self._typed_in:
            return
        if self._typed_in is not None:
            self._unsent.put(self._typed_in, self.prompt.whole)
        self._typed_in = chat
        if (text := self._unsent.of(chat)) != self.prompt.whole:
            self.prompt.put(text)

    def adopt_prompt(self) -> None:
        if self._typed_in is not None:
            self._unsent.put(self._typed_in, "")
        self._typed_in = self.conversation.chat.id if self.conversation.chat else NEW

    def keep_prompt(self) -> None:
        if self._typed_in is not None:
            self._unsent.put(self._typed_in, "\n".join(filter(None, (literal(self.waiting), self.prompt.whole))))
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
        self.prompt.examples = examples(model, self._told)
        self.welcome = Welcome(model, self.prompt.examples)
        await self.transcript.add(self.welcome)
        if loaded:
            self.welcome.ready(loaded)

    async def end_welcome(self) -> None:
        welcome, self.welcome = self.welcome, None
        if welcome:
            await welcome.remove()

    async def show_more(self, later: bool) -> None:
        show = self.transcript.show_later if later else self.transcript.show_earlier
        await show(self.conversation.messages())
        self.mark_branches()

    async def show_newest(self) -> None:
        if not self.transcript.whole:
            await self.transcript.fill(self.conversation.messages())
            self.mark_branches()
        self.transcript.to_end()

    async def go_to(self, at: int | None = None) -> None:
        """Shows the chat's messages of now, another branch of them from the message ``at`` on."""
        messages = self.conversation.messages()
        await self.transcript.go_to(messages, at)
        self.mark_branches()
        await self.meter.show(messages)

    def mark_branches(self) -> None:
        self.transcript.mark(self.conversation.forks())

    def show_title(self) -> None:
        chat = self.conversation.chat
        self.top_bar.chat = chat.title if chat else ""
        self.list_chats()
        self.refresh_keys()

    def list_chats(self) -> None:
        self.sidebar.update(self.conversation.chat.id if self.conversation.chat else None)

    def show_colours(self, on: bool) -> None:
        self.transcript.colour(on)
        self.status.explain(on)

        if on and self.transcript.last_reply and not self.transcript.shows_colours:
            self.hint("Replies of earlier sessions have no colours; the next one will.")

    def say(self, words: str) -> None:
        """Shows words on the prompt's border until others come; without any, whether there is newer text below."""
        self._said = words
        self.show_newer()

    def show_newer(self) -> None:
        self.prompt.border_subtitle = self._said or (NEWER if self.transcript.newer else "")

    def refresh_keys(self) -> None:
        self.screen.refresh_bindings()

    async def notice(self, error: SlipstreamError) -> None:
        await self.transcript.add(Notice(error.title, error.hint))

    async def remark(self, words: str, hint: str = "") -> None:
        await self.transcript.add(Notice(words, hint, remark=True))

    async def name_failed(self, failed: Mapping[str, str]) -> None:
        for words in failure_words(failed):
            await self.remark(f"{words}.", "The text stays the same.")

    def hint(self, words: str) -> None:
        hint(self.screen, words)

    def tell_error(self, error: SlipstreamError) -> None:
        trouble(self.screen, error)

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        try:
            yield
        except SlipstreamError as error:
            self.tell_error(error)
