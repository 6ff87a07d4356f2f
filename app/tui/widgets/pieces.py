"""A reply as it was written: every piece in the style of who wrote it."""

from __future__ import annotations

from array import array
from itertools import pairwise

from rich.cells import cell_len
from textual.content import Content, Span
from textual.widgets import Static

from slipstream.app.engine.protocol import Piece
from slipstream.app.safe_text import clean
from slipstream.app.tui.origins import style_of
from slipstream.app.tui.widgets.long_column import LongColumn, Part

CHUNK = 1500
"""Characters after which the next line end begins another widget: a long reply is not drawn whole at every step."""
LINE = 4 * CHUNK
"""Characters after which it is begun without a line end."""


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
        """Begins empty, and is not seen."""
        super().__init__()
        self.display = False

    @property
    def empty(self) -> bool:
        """Whether nothing was written: a reply from the store has no pieces."""
        return not self.parts

    def add(self, pieces: list[Piece]) -> None:
        """Adds text."""
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
