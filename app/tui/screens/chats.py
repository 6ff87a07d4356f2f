"""All chats: open, rename, delete."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.store import ChatStore
from slipstream.app.safe_text import clean, one_line
from slipstream.app.tui.screens.dialogs import ConfirmScreen, RenameScreen
from slipstream.models.errors import SlipstreamError


class ChatsScreen(ModalScreen[str | None]):
    """A list of chats, newest first; typing narrows it. Closes with the chat to open, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back"),
        Binding("down", "move(1)", "Down", show=False, priority=True),
        Binding("up", "move(-1)", "Up", show=False, priority=True),
        Binding("pagedown", "move(8)", "Page down", show=False, priority=True),
        Binding("pageup", "move(-8)", "Page up", show=False, priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
        Binding("ctrl+r", "rename", "Rename", priority=True),
    ]

    def __init__(self, store: ChatStore, current: str | None) -> None:
        """Keeps what to list.

        Args:
            store: All chats.
            current: The chat that is open, if it is kept.
        """
        super().__init__()
        self._store = store
        self._current = current
        self._shown: list[StoredChat] = []

    def compose(self) -> ComposeResult:
        """A line to search in and the list."""
        with Vertical(classes="sheet", id="chats") as sheet:
            sheet.border_title = "Chats"
            wide = self.app.size.width >= 60
            sheet.border_subtitle = (
                "Enter opens · ^r renames · ^d deletes · Esc back" if wide else "^r rename · ^d delete"
            )
            yield Input(placeholder="Search titles")
            yield OptionList(markup=False)
            yield Static(Content(""), classes="empty")

    def on_mount(self) -> None:
        """Lists the chats; the list itself takes no focus, so that typing searches."""
        self.query_one(OptionList).can_focus = False
        self._list()

    @on(Input.Changed)
    def _list(self, keep: int = 0) -> None:
        words = self.query_one(Input).value.casefold().split()
        chats = self._store.list_chats(1000)
        self._shown = [chat for chat in chats if all(word in chat.title.casefold() for word in words)]
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options([Option(self._row(chat), id=chat.id) for chat in self._shown])
        if self._shown:
            options.highlighted = min(keep if isinstance(keep, int) else 0, len(self._shown) - 1)
        options.display = bool(self._shown)
        empty = self.query_one(".empty", Static)
        empty.display = not self._shown
        empty.update(Content("No title has these words." if chats else "No chats yet: what you say is kept here."))

    def _row(self, chat: StoredChat) -> Content:
        room = max(self.app.size.width - 34, 12)
        title = Content(one_line(chat.title) or "(no title)").truncate(min(room, 46), ellipsis=True, pad=True)
        when = Content(f"  {ago(time.time() - chat.updated):>10}  ").stylize("$foreground 60%")
        mark = Content("● " if chat.id == self._current else "  ").stylize("$primary")
        return mark.append(title).append(when).append(Content(chat.id).stylize("$foreground 60%"))

    def _highlighted(self) -> StoredChat | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    def action_move(self, step: int) -> None:
        """Moves the bar."""
        options = self.query_one(OptionList)
        if self._shown:
            options.highlighted = min(max((options.highlighted or 0) + step, 0), len(self._shown) - 1)

    @on(Input.Submitted)
    def _open(self) -> None:
        if chat := self._highlighted():
            self.dismiss(chat.id)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_delete(self) -> None:
        """Asks, then deletes the chat under the bar."""
        if chat := self._highlighted():
            question = f"Delete “{one_line(chat.title) or chat.id}”?"
            screen = ConfirmScreen(question, "Its messages are erased from the disk; this cannot be undone.", "deletes")
            self.app.push_screen(screen, lambda yes: self._delete(chat.id) if yes else None)

    def _delete(self, chat: str) -> None:
        at = self.query_one(OptionList).highlighted or 0
        self._change(lambda: self._store.delete(chat))
        self._list(at)

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except SlipstreamError as error:
            self.notify(clean(f"{error.title} {error.hint}"), severity="error", markup=False)

    def action_rename(self) -> None:
        """Asks for another title of the chat under the bar."""
        if chat := self._highlighted():
            self.app.push_screen(
                RenameScreen(chat.title), lambda title: self._rename(chat.id, title) if title else None
            )

    def _rename(self, chat: str, title: str) -> None:
        self._change(lambda: self._store.rename(chat, title))
        self._list(self.query_one(OptionList).highlighted or 0)


def ago(seconds: float) -> str:
    """A time that has passed, in the largest unit: "just now", "5 min", "3 h", "2 days"."""
    minutes = seconds / 60
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes:.0f} min"
    if minutes < 24 * 60:
        return f"{minutes / 60:.0f} h"
    days = minutes / (24 * 60)
    return "1 day" if days < 1.5 else f"{days:.0f} days"
