"""The line of an empty chat that offers a larger model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content, Span

from slipstream.app.safe_text import one_line
from slipstream.app.tui.widgets.models_recommended import name_of
from slipstream.app.tui.widgets.models_words import size

if TYPE_CHECKING:
    from slipstream.app.models.manager import CatalogOffer

KEY = "F6"


def offered(offer: CatalogOffer, here: bool) -> Content:
    """What the key does: fetches the model, or goes on with it once it is here."""
    name = one_line(name_of(offer))
    pair = offer.pair
    if here:
        words, more = f"{KEY} goes on with {name}", "It is here now; the chat keeps its text."
    else:
        amount = size(pair.target.about + (pair.drafter.about if pair.drafter else 0))
        with_drafter = " with its drafter" if pair.drafter else ""
        words = f"{KEY} fetches {name}{with_drafter}, {amount}"
        more = "Far better, and fits this machine. Nothing is sent until then."
    at = words.index(name)
    spans = [Span(0, len(KEY), "bold $primary"), Span(at, at + len(name), "bold")]
    return Content(words, spans).append(Content(f"\n{more}").stylize("$foreground 60%"))
