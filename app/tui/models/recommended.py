"""The tab of the catalogue, and the line of an empty chat that suggests a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content, Span

from slipstream.app.library.format import parameters, size
from slipstream.app.library.offers import READING, best_offer, recommended
from slipstream.app.platform.safe_text import clean, one_line, plural, sentence
from slipstream.app.tui.models.machine import BEST, NO_MARK, expected, fit_block, tok_per_s, verdict
from slipstream.app.tui.parts.browser import TableView, below, heading, text
from slipstream.app.tui.parts.table import Column
from slipstream.models.library.pairing import DRAFT, unserved

if TYPE_CHECKING:
    from slipstream.app.library.manager import CatalogOffer
    from slipstream.models.library.catalog import CatalogFile


COLUMNS = (
    Column("  Model"),
    Column("Quant", 4),
    Column("Size", 3, right=True),
    Column("tok/s", 0, right=True),
    Column("Drafter", 2),
    Column("Runs", 5),
    Column("", 2, style="$success"),
)


class RecommendedView(TableView):
    """The pairs that run on this machine, best first; a star marks the best."""

    waiting = "Weighing the catalogue against this machine …"
    nothing = "No model of the catalogue runs on this machine. Close other programs, or search for a smaller one."

    def __init__(self) -> None:
        self.offers: list[CatalogOffer] = []
        self._best: CatalogOffer | None = None

    def take(self, offers: Sequence[CatalogOffer]) -> None:
        """Lists the pairs that run on this machine, and counts the others."""
        self.offers, self._best = recommended(offers), best_offer(offers)
        names = {offer.pair.target.model.casefold() for offer in offers}
        hidden = len(names) - len(self.offers)
        left = f"Not shown: {plural(hidden, 'model')} too big for this machine, or of unknown size." if hidden else ""
        slow = f"None is recommended: all are untested, or slower than people read ({READING:.0f} tokens a second)."
        self.note = " ".join(filter(None, (slow if self.offers and not self._best else "", left)))

    @property
    def columns(self) -> Sequence[Column]:
        return COLUMNS

    def __len__(self) -> int:
        return len(self.offers)

    def key(self, at: int) -> str:
        return self.offers[at].pair.id

    def cells(self, at: int) -> list[Content]:
        offer = self.offers[at]
        target = offer.pair.target
        best = offer is self._best
        mark = Content(BEST if best else NO_MARK).stylize("$accent")
        return [
            mark.append(text(name_of(offer), "bold" if best else "")),
            text(target.quant),
            Content(size(target.about) if target.about else ""),
            tok_per_s(offer.speed),
            _drafter(offer),
            verdict(offer.fit),
            Content("here" if offer.installed else ""),
        ]

    def details(self, at: int) -> list[Content]:
        """The pair's fit, memory, files and evidence."""
        offer = self.offers[at]
        pair = offer.pair
        best = "best for this machine" if offer is self._best else ""
        needs = " · ".join(f"{count // 1024}k: {size(total)}" for count, total in sorted(offer.memory.items()))
        inside = Content(f"{clean(pair.method)}, inside the model itself").stylize("$foreground 70%")
        why_not = unserved(pair)
        return [
            heading(name_of(offer), pair.target.quant, pair.licence, best),
            expected(offer.speed),
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
    """The display name of a pair's target."""
    return offer.pair.target.model or offer.pair.family or offer.pair.id


def evidence(kind: str) -> str:
    """A sentence on the evidence that a pair works."""
    return {
        "documentation": "A publisher documents this pair.",
        "catalogue": "Another public catalogue lists this pair.",
        "reported": "Others report that this pair works.",
        "suggested": "Untested pair.",
    }.get(kind, "")


def _drafter(offer: CatalogOffer) -> Content:
    """The method and the size of a draft model; a dash if the pair is unsupported."""
    pair = offer.pair
    amount = parameters(pair.drafter.params) if pair.drafter and pair.method == DRAFT else ""
    if unserved(pair):
        return Content("–").stylize("$foreground 50%")
    return Content(clean(f"{pair.method} {amount}".strip()))


def _file(file: CatalogFile) -> Content:
    name = text("/".join(part for part in (file.repo or file.model, file.file) if part))
    amount = f" · {size(file.size)}" if file.size else f" · about {size(file.about)}" if file.about else ""
    return name.append(Content(amount)).stylize("$foreground 70%")


KEY = "F6"


def offered(offer: CatalogOffer, here: bool) -> Content:
    """The suggestion: ``KEY`` fetches the model, or loads it if ``here``."""
    name = one_line(name_of(offer))
    pair = offer.pair
    if here:
        words, more = f"{KEY} goes on with {name}", "It is here now; the chat keeps its text."
    else:
        amount = size(pair.target.about + (pair.drafter.about if pair.drafter else 0))
        with_drafter = " with its drafter" if pair.drafter else ""
        words = f"{KEY} fetches {name}{with_drafter}, {amount}"
        assumed = offer.speed is not None and offer.speed.basis == "assumed"
        quick = "probably quick enough" if assumed else "and quick enough here"
        more = f"Far better, {quick}. Nothing is sent until then."
    at = words.index(name)
    spans = [Span(0, len(KEY), "bold $primary"), Span(at, at + len(name), "bold")]
    return Content(words, spans).append(Content(f"\n{more}").stylize("$foreground 60%"))
