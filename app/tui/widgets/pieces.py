"""A reply as it was written: every piece in the style of who wrote it."""

from __future__ import annotations

from textual.containers import Vertical
from textual.content import Content, Span
from textual.widgets import Static

from slipstream.app.engine.protocol import Piece
from slipstream.app.safe_text import clean
from slipstream.app.tui.origins import style_of

CHUNK = 1500
"""Characters after which the next line end begins another widget: a long reply is not drawn whole at every step."""


class Pieces(Vertical):
    """Plain text in the styles of ``origins``."""

    def __init__(self) -> None:
        """Begins empty."""
        super().__init__()
        self._text = ""
        self._spans: list[Span] = []
        self._stale = False
        self.empty = True
        """Whether nothing was written: a reply from the store has no pieces."""

    def add(self, pieces: list[Piece]) -> None:
        """Adds text; it is drawn at the next ``draw``."""
        for piece in pieces:
            text, style = clean(piece.text).replace("\t", "    "), style_of(piece)
            if not text:
                continue
            start, end = len(self._text), len(self._text) + len(text)
            self._text += text
            if style and self._spans and self._spans[-1].end == start and self._spans[-1].style == style:
                self._spans[-1] = Span(self._spans[-1].start, end, style)
            elif style:
                self._spans.append(Span(start, end, style))
            self.empty = False
            self._stale = True

    def draw(self) -> None:
        """Shows what was added."""
        if not self._stale:
            return
        self._stale = False
        if not self.children:
            self.mount(Static())
        cut = self._text.find("\n", CHUNK)
        while cut >= 0:
            self._show(cut)
            self._text = self._text[cut + 1 :]
            moved = [Span(max(span.start - cut - 1, 0), span.end - cut - 1, span.style) for span in self._spans]
            self._spans = [span for span in moved if span.end > 0]
            self.mount(Static())
            cut = self._text.find("\n", CHUNK)
        self._show(len(self._text))

    def _show(self, end: int) -> None:
        last = self.children[-1]
        assert isinstance(last, Static)
        spans = [Span(span.start, min(span.end, end), span.style) for span in self._spans if span.start < end]
        last.update(Content(self._text[:end], spans))
