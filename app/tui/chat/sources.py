"""The source of each word of a reply, as styles over its Markdown."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.tui.chat.formulas import Formula, formulas

_REACH: Final = 240
"""Characters of the source that a shown character is looked for in: an address behind a link may be that long."""


class Sources:
    """Which style each character of a text has."""

    def __init__(self) -> None:
        self.on = False  # whether they are shown
        self.formulas = True  # whether formulas are shown in Unicode
        self._styles: list[str] = []
        self._ends = array("L")  # of each stretch of one style

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, size: int, style: str) -> None:
        if not size:
            return
        end = len(self) + size
        if self._styles and self._styles[-1] == style:
            self._ends[-1] = end
        else:
            self._styles.append(style)
            self._ends.append(end)

    def clear(self) -> None:
        self._styles.clear()
        del self._ends[:]

    def style(self, at: int) -> str:
        """The style of a character; empty for plain decoding, and where it is not known."""
        place = bisect_right(self._ends, at)
        return self._styles[place] if at >= 0 and place < len(self._styles) else ""


class Painter:
    """Shows the sources of a passage over the widgets that its Markdown has become."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._bare: dict[Static, tuple[Content, Content]] = {}  # what each was without styles, and with them

    def paint(self, view: Widget, source: str, start: int) -> None:
        """Brings the widgets up to date.

        A widget's text stands in the source in the same order, with marks of Markdown in between: each character is
        found behind the one before. What Markdown adds, such as a bullet, is not found, and has no style.

        Args:
            view: Holds the widgets.
            source: The Markdown.
            start: Where in the reply it begins; below 0 where something stands before it that the model did not write.
        """
        before, self._bare = self._bare, {}
        at = 0
        known = list(formulas(source)) if self._sources.on and self._sources.formulas else []
        for widget in view.query(Static):
            content = widget.content
            if not isinstance(content, Content) or not content.plain.strip() or widget.has_class("head"):
                continue
            bare, painted = before.get(widget, (content, content))
            bare = bare if content.is_same(painted) else content  # Textual may have written it anew
            wanted = bare
            if self._sources.on:
                at, wanted = self._styled(bare, source, at, start, known)
            self._bare[widget] = (bare, wanted)
            if not wanted.is_same(content):
                widget.update(wanted, layout=False)

    def _styled(self, bare: Content, source: str, at: int, start: int, known: Sequence[Formula]) -> tuple[int, Content]:
        """Some text in its styles, and where in the source it ends."""
        begins, style, content = 0, "", bare
        for place, found in self._places(bare.plain, source, at, known):
            here = self._sources.style(start + found)
            if here != style:
                content = content.stylize(style, begins, place) if style else content
                begins, style = place, here
            at = found + 1
        return at, content.stylize(style, begins, len(bare.plain)) if style else content

    @staticmethod
    def _places(shown: str, source: str, at: int, known: Sequence[Formula]) -> Iterator[tuple[int, int]]:
        """Where each shown character stands in the source; those that are not there are left out.

        A formula's characters stand where it begins, but for the last one, which stands where it ends.
        """
        ahead = iter(known)
        formula = next(ahead, None)
        place = 0
        while place < len(shown):
            while formula and formula.start < at:
                formula = next(ahead, None)
            character = shown[place]
            found = source.find(character, at, at + _REACH) if not character.isspace() else -1
            if formula and not 0 <= found < formula.start and shown.startswith(formula.shown, place):
                yield place, formula.start
                at, place = formula.end, place + len(formula.shown)
                yield place - 1, at - 1
                continue
            if found >= 0:
                at = found + 1
                yield place, found
            place += 1
