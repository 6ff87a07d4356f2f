"""A long, growing plain text."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from slipstream.app.platform.safe_text import clean
from slipstream.app.tui.parts.long_column import LongColumn, Part

CHUNK = 1500
"""Characters after which the next line end begins another widget, so that a step redraws only the last one."""
LINE = 4 * CHUNK
"""Characters after which a widget begins even without a line end."""


class _Chunk(Part):
    """One widget's text."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def make(self) -> Static:
        return Static(Content(self.text))

    async def draw(self) -> None:
        if isinstance(self.widget, Static):
            self.widget.update(Content(self.text))

    def guess(self, width: int) -> int:
        return sum(max(-(-cell_len(line) // width), 1) for line in self.text.split("\n"))


class PlainColumn(LongColumn):
    """Shows plain text; hidden at first."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False

    @property
    def empty(self) -> bool:
        return not self.parts

    def add(self, text: str) -> None:
        text = clean(text).replace("\t", "    ")
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, _Chunk):
            last = self._begin()
        while text:
            cut = text.find("\n", max(CHUNK - len(last.text), 0))
            skip = 1
            if cut < 0 and len(last.text) + len(text) > LINE:
                cut, skip = LINE - len(last.text), 0
            if cut < 0:
                last.text += text
                break
            last.text += text[:cut]
            text = text[cut + skip :]
            last = self._begin()
        self.soon()

    def _begin(self) -> _Chunk:
        chunk = _Chunk()
        self.parts.append(chunk)
        return chunk
