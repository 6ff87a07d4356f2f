"""The list of all chats: search, open, rename, pin, delete, export."""

import time
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content, Span
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.chats.records import StoredChat
from slipstream.app.chats.search import Hit
from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.chat.commands import CommandRequest
from slipstream.app.tui.parts.dialogs import RowList
from slipstream.models.errors import SlipstreamError

BEFORE = 14  # characters of a snippet that are kept before its first match
WIDE = 110  # screen width from which the list is next to the chat instead of over it
MOST = 500  # chats that are listed; others are only found by search
MOST_HITS = 40
PAGE = 8


def chat_rows(chats: Iterable[StoredChat], current: str | None, now: float) -> list[Option]:
    """Rows of the chats, in their order, each with the id of its chat, grouped below headings that have no id."""
    rows: list[Option] = []
    chats = list(chats)
    titles = Counter(chat.title for chat in chats)
    for name, those in groupby(chats, lambda chat: section(chat, now)):
        rows.append(Option(_heading(name, bool(rows)), disabled=True))
        for chat in those:
            open_now = chat.id == current
            mark = Content.styled("▌ ", "$primary") if open_now else Content("  ")
            title = _title(chat.title).stylize("bold" if open_now else "")
            if titles[chat.title] > 1:  # in front, since a long title is cut at its end
                title = Content.styled(f"{_when(chat, now)} ", "$foreground 65%").append(title)
            rows.append(Option(mark.append(title), id=chat.id))
    return rows


def _hit(hit: Hit) -> Content:
    if hit.message is None:  # the words are in the title
        return Content("  ").append(_highlighted(hit.snippet, hit.spans))
    return Content("\n").join(
        [Content("  ").append(_title(hit.title)), Content("    ").append(_highlighted(*_near(hit)))]
    )


def _title(title: str) -> Content:
    return Content(one_line(title) or "(no title)")


def section(chat: StoredChat, now: float) -> str:
    if chat.pinned:
        return "Pinned"
    today, then = time.localtime(now), time.localtime(chat.updated)
    midnight = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))
    if chat.updated >= midnight:
        return "Today"
    for name, days in (("Yesterday", 1), ("This week", 6)):
        start = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days, 0, 0, 0, 0, 0, -1))
        if chat.updated >= start:
            return name
    return time.strftime("%B" if then.tm_year == today.tm_year else "%B %Y", then)


def _when(chat: StoredChat, now: float) -> str:
    then, today = time.localtime(chat.updated), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%d %b %H:%M", then)


def _heading(name: str, below: bool) -> Content:
    return Content("\n" if below else "").append(Content.styled(name, "$foreground 45%"))


def _near(hit: Hit) -> tuple[str, tuple[tuple[int, int], ...]]:
    cut = max(hit.spans[0][0] - BEFORE, 0) if hit.spans else 0
    start = hit.snippet.find(" ", cut) + 1 if cut else 0
    if not 0 < start <= (hit.spans[0][0] if hit.spans else 0):
        return hit.snippet, hit.spans
    moved = tuple((first - start + 1, last - start + 1) for first, last in hit.spans)
    return "…" + hit.snippet[start:], moved


def _highlighted(text: str, spans: tuple[tuple[int, int], ...]) -> Content:
    words = [Span(start, end, "bold $accent") for start, end in spans]
    return Content(text, [Span(0, len(text), "$foreground 65%"), *words])


class SearchChats(Input):
    """The search text; its binding labels Enter in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Open")]


class Sidebar(Vertical):
    """A search line, and a list of chats or of search hits."""

    own_keys = True  # see ``KeyBar``
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Down", show=False, priority=True),
        Binding("up", "move(-1)", "Up", show=False, priority=True),
        Binding("pagedown", "page(1)", "Page down", show=False, priority=True),
        Binding("pageup", "page(-1)", "Page up", show=False, priority=True),
        Binding("ctrl+r", "ask('rename')", "Rename", priority=True),
        Binding("ctrl+t", "ask('pin')", "Pin", priority=True),
        Binding("ctrl+x,delete", "ask('delete')", "Delete", key_display="^x", priority=True),
        Binding("ctrl+s", "ask('export')", "Export", priority=True),
        Binding("escape", "leave", "Back", key_display="Esc"),
        Binding("ctrl+z", "screen.command('undelete')", "Undo", show=False, priority=True),
    ]

    def __init__(self, store: ChatStore) -> None:
        super().__init__()
        self._store = store
        self._current: str | None = None
        self._chats: dict[str, StoredChat] = {}
        self._places: dict[str, Hit] = {}
        self._wide = False
        self._shown_wide, self._shown_over = True, False

    def compose(self) -> ComposeResult:
        yield SearchChats(placeholder="Search all chats")
        yield RowList(markup=False)
        yield Static(Content(""), classes="empty")

    def on_mount(self) -> None:
        self._lay_out()

    def fit(self, width: int) -> None:
        self._wide = width >= WIDE
        self._lay_out()

    def begin(self, how: str) -> None:
        self._shown_wide, self._shown_over = how != "closed", how == "open"
        self._lay_out()
        self.update(self._current)

    def toggle(self) -> bool:
        focus = not (self.display and self.has_focus_within)
        self._show(focus or (self._wide and not self.has_focus_within))
        if focus:
            self.query_one(Input).focus()
            self._list(first=True)  # the selected row is the open chat, not the one selected when the list was left
        return focus

    def leave(self) -> None:
        self.query_one(Input).value = ""
        self._shown_over = False
        self._lay_out()

    def _show(self, shown: bool) -> None:
        if self._wide:
            self._shown_wide = shown
        else:
            self._shown_over = shown
        self._lay_out()

    def _lay_out(self) -> None:
        self.set_class(not self._wide, "over")
        self.display = self._shown_wide if self._wide else self._shown_over

    def update(self, current: str | None) -> None:
        self._current = current
        if self.display and self.is_mounted:
            self._list()

    @on(Input.Changed)
    def _search(self) -> None:
        self._list(first=True)

    def _list(self, first: bool = False) -> None:
        words = self.query_one(Input).value.strip()
        options, empty = self.query_one(OptionList), self.query_one(".empty", Static)
        before, at_before = self._highlighted_id(), None if first else options.highlighted
        try:
            self._chats = {chat.id: chat for chat in self._store.list_chats(MOST)}
            hits = self._store.search(words, MOST_HITS) if words else []
        except SlipstreamError as error:
            empty.update(Content(one_line(f"{error.title} {error.hint}")))
            options.display, empty.display = False, True
            return
        self._places = {f"hit-{number}": hit for number, hit in enumerate(hits)}
        chats = self._chats.values()
        found = [Option(_hit(hit), id=key) for key, hit in self._places.items()]
        rows = found if words else chat_rows(chats, self._current, time.time())
        with self.app.batch_update():
            options.clear_options()
            options.add_options(rows)
            options.display, empty.display = bool(rows), not rows
            empty.update(Content("No matches." if words else "No chats yet: what you say is kept here."))
            enabled = [place for place, row in enumerate(rows) if not row.disabled]
            wanted = (None if first else before, None if words else self._current)
            known = (place for key in wanted if key for place in enabled if rows[place].id == key)
            near = (place for place in enabled if place >= (at_before or 0))  # the selected row may be gone
            at = next(known, next(near, enabled[-1] if enabled else None))
            options.highlighted = at

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        line = self.query_one(Input)
        return action != "ask" or "delete" not in parameters or (line.selection.is_empty and line.cursor_at_end)

    def action_move(self, step: int) -> None:
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_page(self, step: int) -> None:
        for _ in range(PAGE):
            self.action_move(step)

    def action_leave(self) -> None:
        if self.query_one(Input).value:
            self.query_one(Input).value = ""
        else:
            self.post_message(CommandRequest("leave-list"))

    def action_ask(self, what: str) -> None:
        key = self._highlighted_id()
        chat = self._chats.get(self._places[key].chat if key in self._places else key or "")
        if chat:
            self.post_message(CommandRequest("manage", (what, chat)))

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._open(self._highlighted_id())

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._open(event.option.id)

    def _open(self, key: str | None) -> None:
        hit = self._places.get(key or "") if self.query_one(Input).value.strip() else None
        if hit:
            self.post_message(CommandRequest("open", (hit.chat, hit.message)))
        elif key in self._chats:
            self.post_message(CommandRequest("open", (key, None)))

    def _highlighted_id(self) -> str | None:
        options = self.query_one(OptionList)
        at = options.highlighted
        return options.get_option_at_index(at).id if at is not None and at < options.option_count else None
