"""A list of models and the details of the one under the bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static

from slipstream.app.safe_text import clean
from slipstream.app.tui.widgets.models_view import View

WIDE = 110
"""Columns from which the details stand beside the list."""


class Rows(OptionList, inherit_bindings=False):
    """The rows; the first click on one moves the bar, a second one chooses it. Enter is the screen's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "cursor_down", "Down", show=False),
        Binding("up", "cursor_up", "Up", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end", "last", "Last", show=False),
    ]

    @dataclass
    class Resized(Message):
        """There is another width to write rows for."""

    def __init__(self) -> None:
        """Begins empty."""
        super().__init__(markup=False)

    @property
    def room(self) -> int:
        """Columns of a row."""
        return self.scrollable_content_region.width - 2  # a cell of air on both sides

    def on_resize(self) -> None:
        """Has the rows written anew."""
        self.post_message(self.Resized())

    async def _on_click(self, event: events.Click) -> None:
        event.prevent_default()
        clicked: int | None = event.style.meta.get("option")
        if clicked is not None and clicked == self.highlighted:
            self.action_select()
        elif clicked is not None:
            self.highlighted = clicked


class Browser(Container):
    """Shows a view: its heading, its rows, or what there is to say in their place; and details."""

    @dataclass
    class Chosen(Message):
        """The row under the bar was chosen with the mouse."""

    def __init__(self, view: View) -> None:
        """Begins with a view."""
        super().__init__()
        self.view = view
        self._keys: list[str] = []
        self._marked: dict[int, str] = {}  # view to the row that its bar was on
        self._columns = Static(classes="columns")
        self._words = Static(classes="words")
        self._details = Static(classes="text")
        self._box = VerticalScroll(classes="details", can_focus=False)
        self.rows = Rows()

    def compose(self) -> ComposeResult:
        """The list, then the details."""
        with Vertical(classes="list"):
            yield self._words
            yield self._columns
            yield self.rows
        with self._box:
            yield self._details

    def on_resize(self) -> None:
        """Puts the details where there is room for them."""
        self.set_class(self.size.width >= WIDE, "wide")
        self.describe()

    @property
    def at(self) -> int | None:
        """The row under the bar; None where there is none."""
        at = self.rows.highlighted
        return at if at is not None and at < len(self.view) else None

    @property
    def key(self) -> str | None:
        """What names the row under the bar."""
        return None if self.at is None else self.view.key(self.at)

    def show(self, view: View) -> None:
        """Shows another view; its bar stands where it stood."""
        self.view = view
        self._keys = []
        self.draw()

    @on(Rows.Resized)
    def draw(self) -> None:
        """Writes what the view says now; the bar stays on its row."""
        view, rows = self.view, self.rows
        heading, *lines = view.lines(max(rows.room, 1)) if len(view) else [Content("")]
        keys = [view.key(at) for at in range(len(view))]
        self._columns.update(heading)
        self._columns.display = bool(heading.plain)
        if keys != self._keys:
            marked = self._marked.get(id(view))
            rows.set_options(lines)
            self._keys = keys
            if keys:
                rows.highlighted = view.find(marked) or 0
        else:
            for at, line in enumerate(lines):
                if rows.get_option_at_index(at).prompt != line:
                    rows.replace_option_prompt_at_index(at, line)
        rows.display = bool(keys)
        words = view.words
        self._words.display = not keys or bool(view.error or view.note)
        self._words.update(Content(clean(words)))
        self._words.set_class(bool(view.error), "failure")
        self.describe()

    def describe(self) -> None:
        """Writes the details of the row under the bar."""
        at = self.at
        blocks = [] if at is None else [block for block in self.view.details(at) if block.plain]
        self._box.display = bool(blocks)
        self._details.update(Content("\n\n" if self.has_class("wide") else "\n").join(blocks))

    def move(self, step: int) -> None:
        """Moves the bar."""
        if self._keys:
            self.rows.highlighted = min(max((self.rows.highlighted or 0) + step, 0), len(self._keys) - 1)

    def scroll_details(self, step: int) -> None:
        """Scrolls the details."""
        self._box.scroll_relative(y=step, animate=False)

    @on(OptionList.OptionHighlighted)
    def _moved(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if self.at is not None:
            self._marked[id(self.view)] = self.view.key(self.at)
        self.describe()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen())
