"""A long column of which only what is near the screen is mounted."""

from __future__ import annotations

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

FEW = 4  # parts that are mounted wherever they are; a column of no more is whole at all times
NEAR = 1  # screens above and below the one in sight in which all is mounted
FAR = 2  # screens above and below, beyond which nothing stays mounted


class Part(ABC):
    """A stretch of a column: a widget while it is near the screen, else the number of lines that it takes."""

    def __init__(self) -> None:
        self.widget: Widget | None = None  # what is mounted of it
        self._known = (0, 0)  # the lines that it takes at a width: (width, lines)

    @abstractmethod
    def make(self) -> Widget:
        """Its widget, without a margin."""

    @abstractmethod
    async def draw(self) -> None:
        """Shows in the widget what has changed since."""

    @abstractmethod
    def guess(self, width: int) -> int:
        """About how many lines it takes at a width, 1 at least."""

    def changed(self) -> None:
        """It takes other room than before."""
        self._known = (0, 0)

    def lines(self, width: int) -> int:
        """How many lines it takes at a width; a guess where it was never drawn so."""
        if self.widget is not None and self.widget.is_attached:
            self._known = (width, self.widget.get_content_height(Size(width, 0), self.widget.screen.size, width))
        elif self._known[0] != width:
            self._known = (width, self.guess(width))
        return self._known[1]


class Room(Widget):
    """Stands where parts are that are not mounted, and is as high as they are."""

    DEFAULT_CSS = "Room { height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._parts: Sequence[Part] = ()

    def stand_for(self, parts: Sequence[Part]) -> None:
        """Takes the room of parts."""
        self._parts = parts
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum(part.lines(width) for part in self._parts)

    def render(self) -> Content:
        return Content()

    def render_line(self, y: int) -> Strip:
        """An empty line; all of them at once would be many."""
        return Strip.blank(self.size.width, self.rich_style)


class LongColumn(Vertical):
    """Parts below each other. Its scroller calls ``look``."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        """Takes the first parts; the last of all is the one that grows."""
        super().__init__()
        self.parts: list[Part] = list(parts)  # all of them, from top to bottom
        self._above, self._below = Room(), Room()
        self._first = self._end = 0  # the parts from the first to before the other are mounted
        self._drawn = 0  # parts that there were at the last picture
        self._due = False
        self._hidden = False  # at the last picture

    def compose(self) -> ComposeResult:
        """The newest parts: a chat is read from its end."""
        self._end = self._drawn = len(self.parts)
        self._first = max(self._end - FEW, 0) if self.display else self._end
        self._above.stand_for(self.parts[: self._first])
        yield self._above
        yield from self._made(self._first, self._end)
        yield self._below

    def soon(self) -> None:
        """Draws what has changed in the last part, and those that came behind it, as soon as there is time."""
        if self.is_attached and not self._due:
            self._due = True
            self.call_later(self.draw)

    def see(self, on: bool) -> None:
        """Shows the column or hides it; while it is hidden nothing is drawn."""
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
        """Mounts what is near the screen, and lets go what is far from it.

        Args:
            top: Line of the column at the top of the screen; less than 0 or behind its end where it is elsewhere.

        Returns:
            Lines by which what is at the top of the screen has moved down.
        """
        async with self.lock:
            width = self.size.width
            if len(self.parts) <= FEW or not width or not self.display or not self.is_attached:
                return 0
            starts = self._starts(width)
            first, end = self._wanted(starts, top, height)
            if (first, end) == (self._first, self._end):
                return 0
            place = bisect_right(starts, top) - 1  # of the part at the top of the screen
            await self._show(first, end)
            self._make_room()
            now = self._starts(width)
            if place < 0:
                return 0
            if place >= len(self.parts):
                return now[-1] - starts[-1]
            return now[place] - starts[place] + min(0, self.parts[place].lines(width) - 1 - (top - starts[place]))

    def _starts(self, width: int) -> list[int]:
        """The line that each part begins in, and the one behind the last."""
        return [0, *accumulate(part.lines(width) for part in self.parts)]

    def _wanted(self, starts: list[int], top: int, height: int) -> tuple[int, int]:
        """The first part to be mounted, and the one behind the last."""
        first, end = self._around(starts, top - NEAR * height, top + (1 + NEAR) * height)
        keep_first, keep_end = self._around(starts, top - FAR * height, top + (1 + FAR) * height)
        if self.screen.selections:  # what is selected stays
            keep_first, keep_end = 0, len(self.parts)
        keep_first, keep_end = max(keep_first, self._first), min(keep_end, self._end)
        if keep_first >= keep_end:
            return first, end
        return (min(first, keep_first), max(end, keep_end)) if first < end else (keep_first, keep_end)

    def _around(self, starts: list[int], top: int, bottom: int) -> tuple[int, int]:
        """The parts that have lines between two: the first, and the one behind the last."""
        first = min(max(bisect_right(starts, top) - 1, 0), len(self.parts))
        return first, max(first, min(bisect_right(starts, bottom - 1), len(self.parts)))

    async def _show(self, first: int, end: int) -> None:
        """Has the parts from one to another mounted, and no others."""
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
        """Unmounts parts; the room that they took is kept."""
        gone = [part for part in self.parts[first:end] if part.widget is not None]
        for part in gone:
            part.lines(self.size.width)
        widgets = [part.widget for part in gone if part.widget is not None]
        for part in gone:
            part.widget = None
        for widget in widgets:
            for node in widget.walk_children(Widget, with_self=True):
                node.refresh()  # empties its cache of lines, which Textual 8.2.8 holds on to for a thousand widgets
        if widgets:
            await self.remove_children(widgets)

    def _make_room(self) -> None:
        self._above.stand_for(self.parts[: self._first])
        self._below.stand_for(self.parts[self._end :])
