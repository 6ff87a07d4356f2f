"""The styles that show the source of each word: one for each drafter; kinds of drafters also differ without colours."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from textual.content import Content, Span
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import Piece
from slipstream.app.tui.chat.formulas import Formula, formulas

RECOVERED = "$foreground 60%"  # faint, so that accepted tokens stand out
BONUS = "italic $foreground 75%"
DRAFTED = "underline $success"  # drafted by a model or its heads
COPIED = "underline italic $secondary"  # copied from earlier text
PURPLE = "#a678de"  # not in the themes; legible on light and dark
# the styles of the drafters; italic for drafters without a model
DRAFTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "draft": DRAFTED,
        "medusa": f"underline {PURPLE}",
        "kangaroo": "underline $primary",
        "space": "underline $secondary",
        "eagle3": "bold underline $primary",
        "mtp": "bold underline $secondary",
        "dflash": "bold underline $success",
        "dspark": f"bold underline {PURPLE}",
        "lookup": COPIED,
        "retrieval": "underline italic $primary",
        "recycle": "underline italic $success",
        "lookahead": f"underline italic {PURPLE}",
    }
)
SPARE: Final = "underline $warning"  # of a drafter that is not in ``DRAFTERS``
_REACH: Final = 240
"""Maximum characters of Markdown to skip when searching a shown character; a link's address may be that long."""


def style_by(drafter: str) -> str:
    return DRAFTERS.get(drafter, SPARE)


def style_of(piece: Piece) -> str:
    if piece.origin == "accepted":
        return style_by(piece.source)
    return {"recovered": RECOVERED, "bonus": BONUS}.get(piece.origin, "")


def legend(width: int, drafters: Iterable[str] = ()) -> Content:
    """Explains the styles of these drafters in at most ``width`` cells, 42 or more; drops the first if needed."""
    usual = [("guessed", DRAFTED), ("copied", COPIED)]
    short = [(one_line(name), style_by(name)) for name in drafters] or usual
    long = usual if short is usual else [(f"guessed: {short[0][0]}", short[0][1]), *short[1:]]
    others = [("corrected by the model", RECOVERED), ("extra by it", BONUS), ("not guessed", "")]
    words = long + others
    if _width(words) > width:
        others = [("corrected", RECOVERED), ("extra", BONUS), ("own", "")]
        while len(short) > 1 and _width(short + others) > width:
            del short[0]
        words = short + others
    text = ""
    spans = []
    for word, style in words:
        text += "   " if text else ""
        if style:
            spans.append(Span(len(text), len(text) + len(word), style))
        text += word
    return Content(text, spans)


def _width(words: list[tuple[str, str]]) -> int:
    return sum(len(word) + 3 for word, _ in words) - 3


class Sources:
    """The style of each character of a text by its source, run-length encoded."""

    def __init__(self) -> None:
        self.on = False  # whether they are shown
        self.formulas = True  # whether formulas are shown in Unicode
        self._styles: list[str] = []
        self._ends = array("L")  # end of each run

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
        place = bisect_right(self._ends, at)
        return self._styles[place] if at >= 0 and place < len(self._styles) else ""


class Painter:
    """Styles the widgets of a passage's Markdown by source."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._bare: dict[Static, tuple[Content, Content]] = {}  # each widget's content without and with styles

    def paint(self, view: Widget, source: str, start: int) -> None:
        """Updates the widgets.

        Rendered text keeps the order of the Markdown, which also contains marks: each character is searched after the
        previous one. Characters that Markdown adds, such as bullets, are not found and get no style.
        ``start`` is negative if the Markdown has a prefix that the model did not write.
        """
        before, self._bare = self._bare, {}
        at = 0
        known = list(formulas(source)) if self._sources.on and self._sources.formulas else []
        for widget in view.query(Static):
            content = widget.content
            if not isinstance(content, Content) or not content.plain.strip() or widget.has_class("head"):
                continue
            bare, painted = before.get(widget, (content, content))
            bare = bare if content.is_same(painted) else content  # Textual may have replaced it
            wanted = bare
            if self._sources.on:
                at, wanted = self._styled(bare, source, at, start, known)
            self._bare[widget] = (bare, wanted)
            if not wanted.is_same(content):
                widget.update(wanted, layout=False)

    def _styled(self, bare: Content, source: str, at: int, start: int, known: Sequence[Formula]) -> tuple[int, Content]:
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
        """Pairs of a shown character's position and its position in the Markdown; omits characters that are not found.

        For a formula, yields only its first and last characters, with the start and end of its Markdown.
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
