"""A reply in the styles of its drafters: by colour and, where there is none, by line and weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from textual.content import Content, Span

from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol import Piece

RECOVERED = "$foreground 60%"  # quiet: what a drafter got right is what is to be seen
BONUS = "italic $foreground 75%"
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
        "dflash": "bold underline $success",
        "dspark": f"bold underline {PURPLE}",
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
