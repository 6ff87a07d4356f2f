"""A table, a list with details of the selected row, and the base of the screens that show one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.platform.safe_text import clean, one_line
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.parts.dialogs import Sheet
from slipstream.app.tui.parts.notice import hint, trouble
from slipstream.models.errors import SlipstreamError

R = TypeVar("R")
T = TypeVar("T")
GAP: Final = 2  # cells between two columns of a table
WIDE: Final = 110  # width from which the details are next to the list
LOW: Final = 18  # height below which the style sheet hides minor parts


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column of a table: its title, and what it shows of a row."""

    title: str
    cell: Callable[[R], Content]
    rank: int = 0  # the highest rank is dropped first; rank 0 is never dropped
    right: bool = False  # whether it is right-aligned
    style: str = ""  # style of its cells


def table(columns: Sequence[Column[R]], rows: Sequence[R], width: int) -> list[Content]:
    """The heading, then one line per row; the first column takes the remaining width, and shrinks first."""
    cells = [[column.cell(row).stylize(column.style) for column in columns] for row in rows]
    wide = [max([len(column.title), *(row[at].cell_length for row in cells)]) for at, column in enumerate(columns)]
    shown = [at for at in range(len(columns)) if at == 0 or any(row[at].plain for row in cells)]
    least = min(wide[0], max(18, width // 3))
    while len(shown) > 1 and least + sum(wide[at] + GAP for at in shown[1:]) > width:
        last = max(shown[1:], key=lambda at: (columns[at].rank, at))
        if not columns[last].rank:
            break
        shown.remove(last)
    room = max(width - sum(wide[at] + GAP for at in shown[1:]), 4)
    wide[0] = min(room, max(wide[0], min(room, 34)))
    heading = _line(columns, [Content(column.title) for column in columns], wide, shown).stylize("$foreground 50%")
    return [heading, *(_line(columns, row, wide, shown) for row in cells)]


def _line(columns: Sequence[Column[R]], cells: Sequence[Content], wide: Sequence[int], shown: Sequence[int]) -> Content:
    parts = []
    for at in shown:
        cell = cells[at].truncate(wide[at], ellipsis=True)
        space = Content(" " * (wide[at] - cell.cell_length))
        parts.append(space.append(cell) if columns[at].right else cell.append(space))
    return Content(" " * GAP).join(parts)


class View(ABC, Generic[R]):
    """The content of a list: rows, and details of one."""

    waiting = ""  # message while the list is loading
    nothing = ""  # message for an empty list
    error = ""  # why the list could not be loaded
    note = ""  # a line above the list about background work
    ready = False  # whether the list is loaded

    def __init__(self) -> None:
        self.rows: list[R] = []

    @abstractmethod
    def key(self, row: R) -> str:
        """An identifier of a row that stays the same when the list changes."""

    @abstractmethod
    def lines(self, width: int) -> list[Content]:
        """The heading, which may be empty, then the rows; each may take several lines."""

    @abstractmethod
    def details(self, row: R) -> list[Content]:
        """Blocks of text about a row; blank lines separate them on a wide screen, and empty ones are dropped."""

    def is_heading(self, row: R) -> bool:
        return False

    def find(self, key: str | None) -> int | None:
        return next((at for at, row in enumerate(self.rows) if self.key(row) == key), None)

    @property
    def words(self) -> str:
        """The message above the list; shown instead of it if there are no rows."""
        return self.error or self.note or (self.nothing if self.ready else self.waiting)


class TableView(View[R]):
    """A list with columns, the first of which is the name."""

    columns: Sequence[Column[R]] = ()

    def lines(self, width: int) -> list[Content]:
        return table(self.columns, self.rows, width)


def text(words: str, style: str = "") -> Content:
    """Untrusted text, sanitized, on one line."""
    content = Content(one_line(words))
    return content.stylize(style) if style else content


def heading(name: str, *facts: str) -> Content:
    """The first line of the details: a name, then the facts that are not empty."""
    said = [one_line(fact) for fact in facts if fact]
    return text(name, "bold $primary").append(Content("".join(f" · {fact}" for fact in said)))


def below(*lines: Content) -> Content:
    """Joins the lines that are not empty."""
    return Content("\n").join([line for line in lines if line.plain])


class Rows(OptionList, inherit_bindings=False):
    """The rows; a click selects one, a second click chooses it. The screen handles Enter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "cursor_down", "Down", show=False),
        Binding("up", "cursor_up", "Up", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end", "last", "Last", show=False),
    ]

    @dataclass
    class Resized(Message):
        """The width of the rows changed."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    @property
    def room(self) -> int:
        return self.scrollable_content_region.width - 2  # one cell of padding on both sides

    def on_resize(self) -> None:
        self.post_message(self.Resized())

    async def _on_click(self, event: events.Click) -> None:
        event.prevent_default()
        clicked: int | None = event.style.meta.get("option")
        if clicked is not None and clicked == self.highlighted:
            self.action_select()
        elif clicked is not None:
            self.highlighted = clicked


class Browser(Container):
    """Shows a view: a message, the heading, the rows, and details of the selected row."""

    @dataclass
    class Chosen(Message):
        """The user chose the selected row with the mouse."""

    def __init__(self, view: View[Any]) -> None:
        super().__init__()
        self.view = view
        self._keys: list[str] = []
        self._marked: dict[int, str] = {}  # key of the selected row, by ``id`` of the view
        self._columns = Static(classes="columns")
        self._words = Static(classes="words")
        self._details = Static(classes="text")
        self._box = VerticalScroll(classes="details", can_focus=False)
        self.rows = Rows()

    def compose(self) -> ComposeResult:
        with Vertical(classes="list"):
            yield self._words
            yield self._columns
            yield self.rows
        with self._box:
            yield self._details

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "wide")
        self.describe()

    @property
    def row(self) -> Any:
        """The selected row of the view; None if there is none."""
        at = self.rows.highlighted
        return self.view.rows[at] if at is not None and at < len(self.view.rows) else None

    @property
    def key(self) -> str | None:
        return None if self.row is None else self.view.key(self.row)

    def show(self, view: View[Any]) -> None:
        self.view = view
        self._keys = []
        self.draw()

    @on(Rows.Resized)
    def draw(self) -> None:
        view, rows = self.view, self.rows
        heading, *lines = view.lines(max(rows.room, 1)) if view.rows else [Content("")]
        keys = [view.key(row) for row in view.rows]
        self._columns.update(heading)
        self._columns.display = bool(heading.plain)
        if keys != self._keys:
            marked = view.find(self._marked.get(id(view)))
            rows.set_options(
                Option(line, disabled=view.is_heading(row)) for row, line in zip(view.rows, lines, strict=True)
            )
            self._keys = keys
            if keys:
                rows.highlighted = self._choosable(marked or 0, 1)
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
        blocks = [] if self.row is None else [block for block in self.view.details(self.row) if block.plain]
        self._box.display = bool(blocks)
        self._details.update(Content("\n\n" if self.has_class("wide") else "\n").join(blocks))

    def mark(self, view: View[Any], key: str) -> None:
        """Selects a row of a view once it is drawn with new rows."""
        self._marked[id(view)] = key

    def move(self, step: int) -> None:
        if self._keys:
            to = min(max((self.rows.highlighted or 0) + step, 0), len(self._keys) - 1)
            self.rows.highlighted = self._choosable(to, 1 if step > 0 else -1)

    def _choosable(self, at: int, step: int) -> int | None:
        """The nearest row that is not a heading, in this direction if possible, else in the other."""
        below, above = range(at, len(self.view.rows)), range(at, -1, -1)
        ways = (*below, *above) if step > 0 else (*above, *below)
        return next((place for place in ways if not self.view.is_heading(self.view.rows[place])), None)

    def scroll_details(self, step: int) -> None:
        self._box.scroll_relative(y=step, animate=False)

    @on(OptionList.OptionHighlighted)
    def _moved(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if self.key is not None:
            self._marked[id(self.view)] = self.key
        self.describe()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.post_message(self.Chosen())


class BrowsingScreen(Sheet[T]):
    """Base of the screens with a ``Browser``; subclasses bind the keys that close the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Down", show=False),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("pagedown", "move(10)", "Page down", show=False),
        Binding("pageup", "move(-10)", "Page up", show=False),
        Binding("shift+down", "details(1)", "More details", show=False),
        Binding("shift+up", "details(-1)", "Fewer details", show=False),
        Binding("f1", "app.help", "Help"),
    ]

    def __init__(self, view: View[Any]) -> None:
        super().__init__()
        self.title_line = Static(classes="machine")
        self.browser = Browser(view)

    def compose(self) -> ComposeResult:
        yield self.title_line
        yield self.browser
        yield KeyBar()

    def on_mount(self) -> None:
        self.browser.rows.focus()
        self.watch(self.browser.rows, "highlighted", self.refresh_bindings, init=False)

    def on_resize(self) -> None:
        self.set_class(self.size.height < LOW, "low")

    def action_move(self, step: int) -> None:
        self.browser.move(step)

    def action_details(self, step: int) -> None:
        self.browser.scroll_details(step)

    def action_leave(self) -> None:
        self.dismiss(None)

    def note(self, words: str) -> None:
        self.browser.view.note = words
        self.browser.draw()
        self.refresh_bindings()

    def say(self, words: str) -> None:
        hint(self, words)

    def fail(self, error: SlipstreamError) -> None:
        trouble(self, error)
