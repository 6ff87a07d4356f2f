"""How the writer of a piece of text is told apart: by colour and, where there is none, by line and weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from textual.content import Content, Span

from slipstream.app.engine.protocol import Piece
from slipstream.app.safe_text import one_line

RECOVERED = "bold $warning"
BONUS = "italic $accent"
DRAFTED = "underline $success"
"""What a model or its heads drafted."""
COPIED = "underline italic $secondary"
"""What was copied from text that was there already."""
PURPLE = "#a678de"
"""Beside the theme's own colours; to be read on light and on dark."""

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
"""The styles of the drafters: upright where a model drafted, slanted where something was copied."""


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
    long = [*(drafted or [("draft accepted", DRAFTED), ("copy accepted", COPIED)])]
    others = [("recovered", RECOVERED), ("bonus", BONUS), ("plain", "")]
    short = [*(drafted or [("draft", DRAFTED), ("copy", COPIED)])]
    words = long + others
    if _width(words) > width:
        others[0] = ("recov.", RECOVERED)
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
