"""How the writer of a piece of text is told apart: by colour and, where there is none, by line and weight."""

from __future__ import annotations

from textual.content import Content, Span

from slipstream.app.engine.protocol import Piece

RECOVERED = "bold $warning"
BONUS = "italic $accent"
DRAFTED = "underline $success"
COPIED = "underline italic $secondary"


def style_of(piece: Piece) -> str:
    """The style of a piece; empty for plain decoding."""
    if piece.origin == "accepted":
        return COPIED if piece.source == "lookup" else DRAFTED
    return {"recovered": RECOVERED, "bonus": BONUS}.get(piece.origin, "")


def legend(width: int) -> Content:
    """Explains the styles in a line of at most ``width`` cells."""
    long = [
        ("draft accepted", DRAFTED),
        ("copy accepted", COPIED),
        ("recovered", RECOVERED),
        ("bonus", BONUS),
        ("plain", ""),
    ]
    short = [("draft", DRAFTED), ("copy", COPIED), ("recov.", RECOVERED), ("bonus", BONUS), ("plain", "")]
    words = long if sum(len(word) + 3 for word, _ in long) <= width else short
    text = ""
    spans = []
    for word, style in words:
        text += "   " if text else ""
        if style:
            spans.append(Span(len(text), len(text) + len(word), style))
        text += word
    return Content(text, spans)
