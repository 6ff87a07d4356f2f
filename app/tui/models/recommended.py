"""The tab of the catalogue: pairs of a model and its drafter, best for this machine first.

The line of an empty chat that offers a larger model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content, Span

from slipstream.app.library.format import parameters, size
from slipstream.app.platform.safe_text import clean, one_line, sentence
from slipstream.app.tui.models.machine import BEST, NO_MARK, fit_block, verdict
from slipstream.app.tui.parts.browser import TableView, below, heading, text
from slipstream.app.tui.parts.table import Column
from slipstream.models.library.pairing import DRAFT, unserved

if TYPE_CHECKING:
    from slipstream.app.library.manager import CatalogOffer
    from slipstream.models.library.catalog import CatalogFile


MEMORY_AT = 8192
"""Tokens of context for which the memory is shown."""

COLUMNS = (
    Column("  Model"),
    Column("Quant", 3),
    Column("Size", 1, right=True),
    Column("At 8k", 2, right=True),
    Column("Fits", 0),
    Column("Drafter", 1),
    Column("", 2, style="$success"),
)


class RecommendedView(TableView):
    """Model, size, memory, where it fits, and what drafts for it; a star marks the best for this machine."""

    waiting = "Weighing the catalogue against this machine …"
    nothing = "The catalogue is empty."

    def __init__(self) -> None:
        """Begins with an empty list."""
        self.offers: list[CatalogOffer] = []

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return COLUMNS

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.offers)

    def key(self, at: int) -> str:
        """The pair's name in the catalogue."""
        return self.offers[at].pair.id

    def cells(self, at: int) -> list[Content]:
        """A pair."""
        offer = self.offers[at]
        target = offer.pair.target
        best = at == 0 and offer.fit is not None and offer.fit.verdict != "too big"
        mark = Content(BEST if best else NO_MARK).stylize("$accent")
        memory = offer.memory.get(MEMORY_AT)
        return [
            mark.append(text(name_of(offer), "bold" if best else "")),
            text(target.quant),
            Content(size(target.about) if target.about else ""),
            Content(size(memory) if memory else ""),
            verdict(offer.fit),
            _drafter(offer),
            Content("here" if offer.installed else ""),
        ]

    def details(self, at: int) -> list[Content]:
        """Why it is offered, what it needs, and what would be fetched."""
        offer = self.offers[at]
        pair = offer.pair
        best = "best for this machine" if at == 0 and offer.fit and offer.fit.verdict != "too big" else ""
        needs = " · ".join(f"{count // 1024}k: {size(total)}" for count, total in sorted(offer.memory.items()))
        inside = Content(f"{clean(pair.method)}, inside the model itself").stylize("$foreground 70%")
        why_not = unserved(pair)
        return [
            heading(name_of(offer), pair.target.quant, pair.licence, best),
            fit_block(offer.fit) if offer.fit else Content(""),
            Content(f"Memory by context, with the drafter: {needs}" if needs else ""),
            below(
                Content("Target  ").append(_file(pair.target)),
                Content("Drafter ").append(_file(pair.drafter) if pair.drafter else inside),
            ),
            Content(f"It is here: {clean(offer.installed)}" if offer.installed else "").stylize("$success"),
            Content(f"{sentence(why_not)}; the model is fetched without it." if why_not else "").stylize("$warning"),
            below(Content(evidence(pair.evidence)), Content(clean(pair.note)).stylize("$foreground 60%")),
        ]


def name_of(offer: CatalogOffer) -> str:
    """What people call the target of a pair."""
    return offer.pair.target.model or offer.pair.family or offer.pair.id


def evidence(kind: str) -> str:
    """How sure it is that a pair works."""
    return {
        "documentation": "A publisher documents this pair.",
        "catalogue": "Another public catalogue lists this pair.",
        "reported": "Others report that this pair works.",
        "suggested": "Untested pair.",
    }.get(kind, "")


def _drafter(offer: CatalogOffer) -> Content:
    """The method, with the size of a draft model; dimmed where it is not served."""
    pair = offer.pair
    amount = parameters(pair.drafter.params) if pair.drafter and pair.method == DRAFT else ""
    content = Content(clean(f"{pair.method} {amount}".strip()))
    return content.append(Content(", not yet")).stylize("$foreground 50%") if unserved(pair) else content


def _file(file: CatalogFile) -> Content:
    name = text("/".join(part for part in (file.repo or file.model, file.file) if part))
    amount = f" · {size(file.size)}" if file.size else f" · about {size(file.about)}" if file.about else ""
    return name.append(Content(amount)).stylize("$foreground 70%")


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
