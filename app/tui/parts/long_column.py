"""A long column that mounts only the parts near the screen."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

FEW = 4  # all parts of a column with at most this many are always mounted
NEAR = 1  # distance from the visible screen, in screens, within which parts are mounted
FAR = 2  # distance beyond which parts are unmounted


class Part(ABC):
    """A part of a column: mounted as a widget near the screen, else only a number of lines."""

    def __init__(self) -> None:
        self.widget: Widget | None = None  # the mounted widget
        self._known = (0, 0)  # cached height: (width, lines)

    @abstractmethod
    def make(self) -> Widget:
        """Creates its widget, without a margin."""

    @abstractmethod
    async def draw(self) -> None:
        """Updates the widget."""

    @abstractmethod
    def guess(self, width: int) -> int:
        """Estimated lines at a width, at least 1."""

    def changed(self) -> None:
        self._known = (0, 0)

    def lines(self, width: int) -> int:
        """Lines at a width; an estimate if it was never drawn at that width."""
        if self.widget is not None and self.widget.is_attached:
            self._known = (width, self.widget.get_content_height(Size(width, 0), self.widget.screen.size, width))
        elif self._known[0] != width:
            self._known = (width, self.guess(width))
        return self._known[1]


class Spacer(Widget):
    """A placeholder as high as the unmounted parts."""

    DEFAULT_CSS = "Spacer { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._parts: Sequence[Part] = ()

    def stand_for(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum([part.lines(width) for part in self._parts]) if self._parts else 0

    def render(self) -> Content:
        return Content()

    def render_line(self, y: int) -> Strip:
        """Draws one empty line at a time, since there may be many."""
        return Strip.blank(self.size.width, self.rich_style)


class LongColumn(Vertical):
    """A column of parts. Its scroll container calls ``look``."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        """Sets the first parts; only the last part grows."""
        super().__init__()
        self.parts: list[Part] = list(parts)  # all of them, from top to bottom
        self._above, self._below = Spacer(), Spacer()
        self._first = self._end = 0  # the mounted range of parts, end excluded
        self._drawn = 0  # number of parts at the last draw
        self._due = False
        self._hidden = False  # whether it was hidden since the last draw

    def compose(self) -> ComposeResult:
        """Mounts the last parts: a chat is read from its end."""
        self._end = self._drawn = len(self.parts)
        self._first = max(self._end - FEW, 0) if self.display else self._end
        self._above.stand_for(self.parts[: self._first])
        yield self._above
        yield from self._made(self._first, self._end)
        yield self._below

    def soon(self) -> None:
        if self.is_attached and not self._due:
            self._due = True
            self.call_later(self.draw)

    def see(self, on: bool) -> None:
        self._hidden = self._hidden or not self.display
        self.display = on
        if on:
            self.soon()

    async def draw(self) -> None:
        async with self.lock:
            self._due = False
            if not self.is_attached or not self.display:
                return
            at_end, count = self._end == self._drawn, len(self.parts)
            first = self._first
            if self._hidden:
                self._hidden, at_end, first = False, True, max(count - FEW, 0)
            with self.app.batch_update():
                for part in self.parts[max(self._drawn - 1, 0) : self._drawn]:
                    part.changed()
                    if part.widget is not None:
                        await part.draw()
                self._drawn = count
                if at_end:
                    await self._show(first, count)
                self._make_room()

    async def fill(self, parts: Iterable[Part]) -> None:
        async with self.lock:
            with self.app.batch_update():
                await self._show(0, 0)
                self.parts = list(parts)
                self._drawn = len(self.parts)
                await self._show(max(self._drawn - FEW, 0), self._drawn)
                self._make_room()

    async def look(self, top: int, height: int) -> int:
        """Mounts the parts near the screen; returns the lines by which the content at its top has moved down."""
        async with self.lock:
            width = self.size.width
            if len(self.parts) <= FEW or not width or not self.display or not self.is_attached:
                return 0
            starts = self._starts(width)
            first, end = self._wanted(starts, top, height)
            if (first, end) == (self._first, self._end):
                return 0
            place = bisect_right(starts, top) - 1  # the part at the top of the screen
            await self._show(first, end)
            self._make_room()
            now = self._starts(width)
            if place < 0:
                return 0
            if place >= len(self.parts):
                return now[-1] - starts[-1]
            return now[place] - starts[place] + min(0, self.parts[place].lines(width) - 1 - (top - starts[place]))

    def _starts(self, width: int) -> list[int]:
        return [0, *accumulate(part.lines(width) for part in self.parts)]

    def _wanted(self, starts: list[int], top: int, height: int) -> tuple[int, int]:
        first, end = self._around(starts, top - NEAR * height, top + (1 + NEAR) * height)
        keep_first, keep_end = self._around(starts, top - FAR * height, top + (1 + FAR) * height)
        if self.screen.selections:  # selected text stays mounted
            keep_first, keep_end = 0, len(self.parts)
        keep_first, keep_end = max(keep_first, self._first), min(keep_end, self._end)
        if keep_first >= keep_end:
            return first, end
        return (min(first, keep_first), max(end, keep_end)) if first < end else (keep_first, keep_end)

    def _around(self, starts: list[int], top: int, bottom: int) -> tuple[int, int]:
        first = min(max(bisect_right(starts, top) - 1, 0), len(self.parts))
        return first, max(first, min(bisect_right(starts, bottom - 1), len(self.parts)))

    async def _show(self, first: int, end: int) -> None:
        if end <= self._first or first >= self._end:
            await self._let_go(self._first, self._end)
            self._first = self._end = first
        if first < self._first:
            await self.mount(*self._made(first, self._first), after=self._above)
        if end > self._end:
            await self.mount(*self._made(self._end, end), before=self._below)
        await self._let_go(self._first, first)
        await self._let_go(end, self._end)
        self._first, self._end = first, end

    def _made(self, first: int, end: int) -> list[Widget]:
        widgets = []
        for part in self.parts[first:end]:
            part.widget = part.make()
            widgets.append(part.widget)
        return widgets

    async def _let_go(self, first: int, end: int) -> None:
        gone = [part for part in self.parts[first:end] if part.widget is not None]
        for part in gone:
            part.lines(self.size.width)
        widgets = [part.widget for part in gone if part.widget is not None]
        for part in gone:
            part.widget = None
        for widget in widgets:
            for node in widget.walk_children(Widget, with_self=True):
                node.refresh()  # empties the line cache, which Textual 8.2.8 keeps for a thousand widgets
        if widgets:
            await self.remove_children(widgets)

    def _make_room(self) -> None:
        self._above.stand_for(self.parts[: self._first])
        self._below.stand_for(self.parts[self._end :])
