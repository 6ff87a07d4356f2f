"""The talk and the other chats: open, rename, pin, delete and export them in the list beside it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from textual import on, work
from textual.content import Content

from slipstream.app.chats.exporting import exported, write_export
from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.shelf import UNDO_WITHIN
from slipstream.app.safe_text import one_line
from slipstream.app.tui.screens.dialogs import LineScreen
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.app.tui.widgets.sidebar import Sidebar
from slipstream.models.errors import SlipstreamError


class ShelfTalk(TalkScreen):
    """A talk beside the list of all chats."""

    _deleted: StoredChat | None = None  # can still be brought back

    def action_chats(self) -> None:
        """Opens the list of chats and goes there; from there, closes it."""
        if not self.sidebar.toggle():
            self.prompt.focus()
        self._list_chats()
        self.refresh_bindings()

    @on(Sidebar.Left)
    def _left(self) -> None:
        self.sidebar.leave()
        self.prompt.focus()
        self.refresh_bindings()

    @on(Sidebar.Opened)
    async def _open_chosen(self, event: Sidebar.Opened) -> None:
        current = self._conversation.chat
        self._left()
        if current and current.id == event.chat and event.message is None:
            return
        await self._after_reply(partial(self._open, event.chat, event.message))

    async def _open(self, chat: str, message: int | None) -> None:
        before = self._conversation.chat
        try:
            self._conversation.open(chat)
            if message is not None:
                self._conversation.show(message)
        except SlipstreamError as error:
            self._tell_error(error)
            return
        if before is None or before.id != chat:
            self.strip.clear()
        await self._show_chat(message)

    async def action_new_chat(self) -> None:
        """Begins a chat."""
        await self._after_reply(self._new_chat)

    async def _new_chat(self) -> None:
        self._conversation.begin()
        self.strip.clear()
        await self._show_chat()

    # --- what is done to a chat -----------------------------------------------------------------------------------

    @on(Sidebar.Asked)
    async def _asked(self, event: Sidebar.Asked) -> None:
        chat = event.chat
        if event.what == "rename":
            screen = LineScreen("Title", one_line(chat.title), "keeps")
            self.app.push_screen(screen, lambda title: self._rename(chat, title) if title else None)
        elif event.what == "export":
            screen = LineScreen("Export as .md or .json", str(Path.cwd() / file_name(chat)), "writes")
            self.app.push_screen(screen, lambda path: self._export(chat, path) if path else None)
        elif event.what == "pin":
            self._pin(chat)
        elif self._conversation.chat and self._conversation.chat.id == chat.id:
            await self._after_reply(partial(self._delete, chat))
        else:
            await self._delete(chat)

    def _rename(self, chat: StoredChat, title: str) -> None:
        try:
            self._store.rename(chat.id, title)
            if self._conversation.chat and self._conversation.chat.id == chat.id:
                self._conversation.open(chat.id)
                self.top_bar.chat = title
        except SlipstreamError as error:
            self._tell_error(error)
        self._list_chats()

    def _pin(self, chat: StoredChat) -> None:
        try:
            self._store.pin(chat.id, not chat.pinned)
        except SlipstreamError as error:
            self._tell_error(error)
        self._list_chats()

    def _export(self, chat: StoredChat, path: str) -> None:
        place = Path(path).expanduser()
        try:
            write_export(place, exported(self._store, [chat.id], "json" if place.suffix == ".json" else "md"))
        except SlipstreamError as error:
            self._tell_error(error)
        else:
            self._hint(f"Wrote {place}.")

    async def _delete(self, chat: StoredChat) -> None:
        try:
            self._store.delete(chat.id)
        except SlipstreamError as error:
            self._tell_error(error)
        self._deleted = chat
        self.set_timer(UNDO_WITHIN + 1.0, self._erase)
        self.app.clear_notifications()
        title = Content(one_line(chat.title) or chat.id).truncate(36, ellipsis=True).plain
        self.notify(f"Deleted “{title}”. Ctrl-Z brings it back.", timeout=10, markup=False)
        if self._conversation.chat and self._conversation.chat.id == chat.id:
            await self._new_chat()
        self._list_chats()

    def action_undo_delete(self) -> None:
        """Brings back the chat that was deleted last."""
        deleted, self._deleted = self._deleted, None
        try:
            back = bool(deleted and self._store.restore(deleted.id))
        except SlipstreamError as error:
            self._tell_error(error)
            return
        self._hint(f"“{one_line(deleted.title)}” is back." if deleted and back else "No chat can be brought back.")
        self._list_chats()

    @work(thread=True, group="erase", exit_on_error=False)
    def _erase(self) -> None:
        """Erases the chats whose time to be brought back is over."""
        try:
            self._store.erase_deleted()
        except SlipstreamError as error:
            self.app.call_from_thread(self._tell_error, error)


def file_name(chat: StoredChat) -> str:
    """A file name that every system takes."""
    words = "".join(char if char.isalnum() else " " for char in chat.title.casefold()).split()
    return f"{'-'.join(words)[:60] or chat.id}.md"
