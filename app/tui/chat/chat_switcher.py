"""Opens, renames, pins, deletes and exports the chats of the sidebar, and searches their prompts."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from slipstream.app.chats.chat_list import UNDO_WITHIN
from slipstream.app.chats.exporting import exported, format_of, write_export
from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import ReplyWriter
from slipstream.app.tui.parts.dialogs import Dialog, LineScreen, RowList, sheet
from slipstream.app.tui.parts.notice import run_in_thread
from slipstream.models.errors import UsageError

MOST_RECALLED: Final = 100_000  # prompts that can be searched
MOST_LISTED: Final = 200  # maximum prompts in the list; more search words find older ones
_SHOWN: Final = 300  # characters of a prompt that are shown


class ChatSwitcher:
    """Switches between chats and manages them."""

    def __init__(
        self, page: ChatPage, store: ChatStore, replies: ReplyWriter, show_chat: Callable[[int | None], Awaitable[None]]
    ) -> None:
        self._page, self._store, self._replies, self._show_chat = page, store, replies, show_chat
        self._deleted: StoredChat | None = None  # the chat that was deleted last

    def toggle(self) -> None:
        if not self._page.sidebar.toggle():
            self._page.prompt.focus()
        self._page.list_chats()
        self._page.refresh_keys()

    def leave(self) -> None:
        self._page.sidebar.leave()
        self._page.prompt.focus()
        self._page.refresh_keys()

    async def chosen(self, chat: str, message: int | None) -> None:
        self.leave()
        if message is not None or not self._is_open(chat):
            await self._replies.after(partial(self.open, chat, message))

    async def open(self, chat: str, message: int | None = None) -> None:
        other = not self._is_open(chat)
        with self._page.errors_told():
            self._page.conversation.open(chat)
            if message is not None:
                self._page.conversation.show(message)
            if other:
                self._page.status.clear()
            await self._show_chat(message)

    async def begin(self) -> None:
        self._page.conversation.begin()
        self._page.status.clear()
        await self._show_chat(None)

    def _is_open(self, chat: str) -> bool:
        now = self._page.conversation.chat
        return now is not None and now.id == chat

    async def manage(self, what: str, chat: StoredChat) -> None:
        push = self._page.screen.app.push_screen
        if what == "rename":
            screen = LineScreen("Title", one_line(chat.title), "keeps")
            push(screen, lambda title: self._rename(chat, title) if title else None)
        elif what == "export":
            screen = LineScreen("Export as .md or .json", str(Path.cwd() / file_name(chat)), "writes")
            push(screen, lambda path: self._export(chat, path) if path else None)
        elif what == "pin":
            self._store.pin(chat.id, not chat.pinned)
            self._page.list_chats()
        elif self._is_open(chat.id):
            await self._replies.after(partial(self._delete, chat))
        else:
            await self._delete(chat)

    def _rename(self, chat: StoredChat, title: str) -> None:
        with self._page.errors_told():
            self._store.rename(chat.id, title)
            if self._is_open(chat.id):
                self._page.conversation.open(chat.id)
                self._page.top_bar.chat = title
        self._page.list_chats()

    def export_as(self, file: str = "") -> None:
        chat = self._page.conversation.chat
        if chat is None:
            raise UsageError("nothing was said yet; there is nothing to export.", "")
        self._export(chat, file or str(Path.cwd() / file_name(chat)))

    def _export(self, chat: StoredChat, path: str) -> None:
        place = Path(path).expanduser()
        with self._page.errors_told():
            write_export(place, exported(self._store, [chat.id], format_of(place)))
            self._page.hint(f"Wrote {place}.")

    async def _delete(self, chat: StoredChat) -> None:
        screen = self._page.screen
        with self._page.errors_told():
            self._store.delete(chat.id)
        self._deleted = chat
        screen.set_timer(UNDO_WITHIN + 1.0, self._erase)
        screen.app.clear_notifications()
        title = Content(one_line(chat.title) or chat.id).truncate(36, ellipsis=True).plain
        screen.notify(f"Deleted “{title}”. Ctrl-Z brings it back.", timeout=10, markup=False)
        if self._is_open(chat.id):
            await self.begin()
        self._page.list_chats()

    async def undo_delete(self) -> None:
        deleted, self._deleted = self._deleted, None
        back = bool(deleted and self._store.restore(deleted.id))
        said = f"“{one_line(deleted.title)}” is back." if deleted and back else "No chat can be brought back."
        if deleted and back and self._page.conversation.chat is None:
            await self.open(deleted.id)
        self._page.hint(said)
        self._page.list_chats()

    def _erase(self) -> None:
        run_in_thread(self._page.screen, self._store.erase_deleted, lambda _: None, self._page.tell_error)

    def recall(self) -> None:
        prompts = self._store.prompts(MOST_RECALLED)
        put = self._page.prompt.put_message
        self._page.screen.app.push_screen(RecallScreen(prompts), lambda text: put(text) if text else None)


def file_name(chat: StoredChat) -> str:
    words = "".join(char if char.isalnum() else " " for char in chat.title.casefold()).split()
    return f"{'-'.join(words)[:60] or chat.id}.md"


class RecallScreen(Dialog[str | None]):
    """Filters prompts by the typed words. Closes with the chosen prompt, or None."""

    DEFAULT_CSS = """
    RecallScreen #recall { width: 100; height: 80%; }
    RecallScreen OptionList {
        height: 1fr; margin: 1 0 0 0; padding: 0; border: none; background: transparent; scrollbar-size-vertical: 1;
    }
    RecallScreen OptionList > .option-list--option { text-wrap: nowrap; text-overflow: ellipsis; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down,ctrl+r", "move(1)", show=False, priority=True),
        Binding("pageup", "move(-10)", show=False, priority=True),
        Binding("pagedown", "move(10)", show=False, priority=True),
    ]

    def __init__(self, prompts: Sequence[str]) -> None:
        super().__init__()
        self._prompts = list(dict.fromkeys(reversed(prompts)))  # without duplicates, newest first
        self._folded = [prompt.casefold() for prompt in self._prompts]
        self.found: list[str] = []

    def compose(self) -> ComposeResult:
        with sheet(Vertical(id="recall"), "", "Enter takes it", "Esc back"):
            yield Input(placeholder="type to search", max_length=1000)
            yield RowList(markup=False)

    def on_mount(self) -> None:
        self._list("")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, text: str) -> None:
        words = text.casefold().split()
        both = zip(self._prompts, self._folded, strict=True)
        fits = [prompt for prompt, folded in both if all(word in folded for word in words)]
        self.found = fits[:MOST_LISTED]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(_row(prompt, words)) for prompt in self.found)
        options.highlighted = 0 if self.found else None
        self.query_one("#recall").border_title = f"Earlier prompts · {len(fits):,} of {len(self._prompts):,}"

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if self.found:
            options.highlighted = min(max((options.highlighted or 0) + step, 0), len(self.found) - 1)

    @on(Input.Submitted)
    def _submitted(self) -> None:
        at = self.query_one(OptionList).highlighted
        self.dismiss(None if at is None else self.found[at])

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        if event.option_index < len(self.found):  # else the row has gone since the click
            self.dismiss(self.found[event.option_index])


def _row(prompt: str, words: Sequence[str]) -> Content:
    line = one_line(prompt[: 100 * _SHOWN])
    folded = line.casefold()
    first = min((place for word in words if (place := folded.find(word)) >= 0), default=0)
    start = 0 if first < _SHOWN // 10 else first - 10
    row = Content(("…" if start else "") + line[start : start + _SHOWN])
    for word in words:
        place = row.plain.casefold().find(word)
        if place >= 0:
            row = row.stylize("bold $primary", place, place + len(word))
    return row
