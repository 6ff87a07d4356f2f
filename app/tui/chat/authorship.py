"""A reply in the styles of its drafters: by colour and, where there is none, by line and weight."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from rich.cells import cell_len
from textual.content import Content, Span
from textual.widgets import Static

from slipstream.app.platform.safe_text import clean, one_line
from slipstream.app.protocol import Piece
from slipstream.app.tui.parts.long_column import LongColumn, Part

RECOVERED = "$warning"
BONUS = "italic $accent"
DRAFTED = "underline $success"  # what a model or its heads drafted
COPIED = "underline italic $secondary"  # what was copied from text that was there already
PURPLE = "#a678de"  # beside the theme's own colours; to be read on light and on dark

# the styles of the drafters: upright where a model drafted, slanted where something was copied
DRAFTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "draft": DRAFTED,
        "medusa": f"underline {PURPLE}",
        "kangaroo": "underline $primary",
        "space": "underline $secondary",
        "eagle3": "bold underline $primary",
        "mtp": "bold underline $secondary",
        "lookup": COPIED,
        "retrieval": "underline italic $primary",
        "recycle": "underline italic $success",
        "lookahead": f"underline italic {PURPLE}",
    }
)


def style_of(piece: Piece) -> str:
    """The style of a piece; empty for plain decoding."""
    if piece.origin == "accepted":
        return DRAFTERS.get(piece.source, DRAFTED)
    return {"recovered": RECOVERED, "bonus": BONUS}.get(piece.origin, "")


def legend(width: int, drafters: Iterable[str] = ()) -> Content:
    """Explains the styles in a line of at most ``width`` cells.

    Args:
        width: Cells, 42 at least.
        drafters: Whose text is on the screen; the first are left out where there is no room for all. Without any, the
            styles are explained in general.
    """
    drafted = [(one_line(name), DRAFTERS.get(name, DRAFTED)) for name in drafters]
    long = [*(drafted or [("guessed by a model", DRAFTED), ("copied", COPIED)])]
    others = [("corrected", RECOVERED), ("free extra token", BONUS), ("not guessed", "")]
    short = [*(drafted or [("guessed", DRAFTED), ("copied", COPIED)])]
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


CHUNK = 1500
"""Characters after which the next line end begins another widget: a long reply is not drawn whole at every step."""
LINE = 4 * CHUNK  # characters after which it is begun without a line end


class _Chunk(Part):
    """Some text and its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._styles: list[str] = []
        self._ends = array("L", [0])  # in the text: where each style begins, and where the last ends

    def add(self, text: str, style: str) -> None:
        self.text += text
        if self._styles and self._styles[-1] == style:
            self._ends[-1] = len(self.text)
        elif text:
            self._styles.append(style)
            self._ends.append(len(self.text))

    def make(self) -> Static:
        return Static(self._content())

    async def draw(self) -> None:
        if isinstance(self.widget, Static):
            self.widget.update(self._content())

    def guess(self, width: int) -> int:
        return sum(max(-(-cell_len(line) // width), 1) for line in self.text.split("\n"))

    def _content(self) -> Content:
        stretches = zip(pairwise(self._ends), self._styles, strict=True)
        return Content(self.text, [Span(start, end, style) for (start, end), style in stretches if style])


class Pieces(LongColumn):
    """Plain text in the styles of ``origins``."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False

    @property
    def empty(self) -> bool:
        """Whether nothing was written: a reply from the store has no pieces."""
        return not self.parts

    def add(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            text, style = clean(piece.text).replace("\t", "    "), style_of(piece)
            if text:
                self._add(text, style)
        self.soon()

    def _add(self, text: str, style: str) -> None:
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, _Chunk):
            last = self._begin()
        while text:
            room = CHUNK - len(last.text)
            cut = text.find("\n", max(room, 0))
            if cut < 0 and len(last.text) + len(text) > LINE:
                cut = LINE - len(last.text)
                last.add(text[:cut], style)
                text = text[cut:]
                last = self._begin()
            elif cut < 0:
                last.add(text, style)
                return
            else:
                last.add(text[:cut], style)
                text = text[cut + 1 :]
                last = self._begin()

    def _begin(self) -> _Chunk:
        chunk = _Chunk()
        self.parts.append(chunk)
        return chunk
