"""The text styles of the drafters; kinds of drafters also differ without colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from textual.content import Content, Span

from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import Piece

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


def style_of(piece: Piece) -> str:
    """The style of a piece; empty for plain decoding."""
    if piece.origin == "accepted":
        return DRAFTERS.get(piece.source, DRAFTED)
    return {"recovered": RECOVERED, "bonus": BONUS}.get(piece.origin, "")


def legend(width: int, drafters: Iterable[str] = ()) -> Content:
    """Explains the styles in a line of at most ``width`` cells.

    Args:
        width: Cells, 42 at least.
        drafters: The drafters of the shown text; the first are dropped if the line is too long. If empty, the legend
            is generic.
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
