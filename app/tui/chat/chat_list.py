"""Opens, renames, pins, deletes and exports the chats of the sidebar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from textual.content import Content

from slipstream.app.chats.chat_list import UNDO_WITHIN
from slipstream.app.chats.exporting import exported, write_export
from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.recall import RecallScreen
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.chat.sidebar import Sidebar
from slipstream.app.tui.parts.dialogs import LineScreen
from slipstream.app.tui.parts.run_in_thread import run_in_thread
from slipstream.models.errors import UsageError

MOST_RECALLED = 100_000  # prompts that can be searched


class ChatList:
    """Switches between chats and manages them."""

    def __init__(
        self,
        page: ChatPage,
        store: ChatStore,
        replying: Replying,
        show_chat: Callable[[int | None], Awaitable[None]],
    ) -> None:
        """Opens no chat.

        Args:
            replying: Ends a reply before its chat is left.
            show_chat: Shows the chat from a message on, or its end.
        """
        self._page, self._store, self._replying, self._show_chat = page, store, replying, show_chat
        self._deleted: StoredChat | None = None  # the chat that was deleted last

    # --- switching chats ------------------------------------------------------------------------------------------

    def toggle(self) -> None:
        """Opens and focuses the list; closes it if it has the focus."""
        if not self._page.sidebar.toggle():
            self._page.prompt.focus()
        self._page.list_chats()
        self._page.refresh_keys()

    def leave(self) -> None:
        self._page.sidebar.leave()
        self._page.prompt.focus()
        self._page.refresh_keys()

    async def chosen(self, chat: str, message: int | None) -> None:
        """Opens the chosen chat after the current reply has ended."""
        self.leave()
        if message is not None or not self._is_open(chat):
            await self._replying.after(partial(self.open, chat, message))

    async def open(self, chat: str, message: int | None = None) -> None:
        """Opens a chat.

        Args:
            message: Id of the message to scroll to; None scrolls to the end.
        """
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

    # --- actions on a chat ----------------------------------------------------------------------------------------

    async def asked(self, event: Sidebar.Asked) -> None:
        """Runs an action that the user chose in the list."""
        chat, push = event.chat, self._page.screen.app.push_screen
        if event.what == "rename":
            screen = LineScreen("Title", one_line(chat.title), "keeps")
            push(screen, lambda title: self._rename(chat, title) if title else None)
        elif event.what == "export":
            screen = LineScreen("Export as .md or .json", str(Path.cwd() / file_name(chat)), "writes")
            push(screen, lambda path: self._export(chat, path) if path else None)
        elif event.what == "pin":
            self._pin(chat)
        elif self._is_open(chat.id):
            await self._replying.after(partial(self._delete, chat))
        else:
            await self._delete(chat)

    def _rename(self, chat: StoredChat, title: str) -> None:
        with self._page.errors_told():
            self._store.rename(chat.id, title)
            if self._is_open(chat.id):
                self._page.conversation.open(chat.id)
                self._page.top_bar.chat = title
        self._page.list_chats()

    def _pin(self, chat: StoredChat) -> None:
        with self._page.errors_told():
            self._store.pin(chat.id, not chat.pinned)
        self._page.list_chats()

    def export_as(self, file: str) -> None:
        """Writes the open chat to a file, by default in the current folder."""
        chat = self._page.conversation.chat
        if chat is None:
            raise UsageError("nothing was said yet; there is nothing to export.", "")
        self._export(chat, file or str(Path.cwd() / file_name(chat)))

    def _export(self, chat: StoredChat, path: str) -> None:
        place = Path(path).expanduser()
        with self._page.errors_told():
            write_export(place, exported(self._store, [chat.id], "json" if place.suffix == ".json" else "md"))
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
        """Restores the chat that was deleted last, and opens it if the current chat is empty."""
        deleted, self._deleted = self._deleted, None
        back = bool(deleted and self._store.restore(deleted.id))
        said = f"“{one_line(deleted.title)}” is back." if deleted and back else "No chat can be brought back."
        if deleted and back and self._page.conversation.chat is None:
            await self.open(deleted.id)
        self._page.hint(said)
        self._page.list_chats()

    def _erase(self) -> None:
        """Erases deleted chats that can no longer be restored."""
        run_in_thread(self._page.screen, self._store.erase_deleted, lambda _: None, self._page.tell_error)

    # --- search ---------------------------------------------------------------------------------------------------

    def recall(self) -> None:
        """Searches the prompts of all chats, and puts the chosen one into the prompt."""
        prompts = self._store.prompts(MOST_RECALLED)
        put = self._page.prompt.put_message
        self._page.screen.app.push_screen(RecallScreen(prompts), lambda text: put(text) if text else None)


def file_name(chat: StoredChat) -> str:
    """A file name that is valid on every system."""
    words = "".join(char if char.isalnum() else " " for char in chat.title.casefold()).split()
    return f"{'-'.join(words)[:60] or chat.id}.md"
