"""Pairs of models and drafters: the tab of the catalogue, the dialog of a model's drafters, the first suggestion."""

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content, Span
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.library.format import parameters, size
from slipstream.app.library.offers import READING, CatalogOffer, best_offer, recommended
from slipstream.app.platform.safe_text import clean, one_line, plural, sentence
from slipstream.app.speed import times
from slipstream.app.tui.models.machine import BEST, NO_MARK, expected, fit_block, tok_per_s, verdict
from slipstream.app.tui.parts.browser import Column, TableView, below, heading, text
from slipstream.app.tui.parts.dialogs import Dialog, sheet
from slipstream.app.tui.parts.notice import hint
from slipstream.models.heads.matching_heads import MTP
from slipstream.models.library.catalog import CatalogFile
from slipstream.models.library.pairing import DRAFT, PairOffer, unserved

KEY = "F6"
SLOW = f"None is recommended: all are untested, slower than people read ({READING:.0f} tokens a second), or large."
BORDERS = 8  # columns of border, padding and scroll bar
WIDTH = 100
READY, FETCH, CANNOT = "● ", "↓ ", "✗ "


class RecommendedView(TableView["CatalogOffer"]):
    """The pairs that run on this machine, best first; a star marks the best."""

    waiting = "Weighing the catalogue against this machine …"
    nothing = "No model of the catalogue runs on this machine. Close other programs, or search for a smaller one."

    def __init__(self) -> None:
        super().__init__()
        self._best: CatalogOffer | None = None
        self.columns = (
            Column("  Model", self._name),
            Column("Quant", lambda offer: text(offer.pair.target.quant), 4),
            Column(
                "Size", lambda offer: Content(size(about) if (about := offer.pair.target.about) else ""), 3, right=True
            ),
            Column("tok/s", lambda offer: tok_per_s(offer.speed), right=True),
            Column("Drafter", _drafter, 2),
            Column("Runs", lambda offer: verdict(offer.fit), 5),
            Column("", lambda offer: Content("here" if offer.installed else ""), 2, style="$success"),
        )

    def take(self, offers: Sequence[CatalogOffer]) -> None:
        self.rows, self._best = recommended(offers), best_offer(offers)
        names = {offer.pair.target.model.casefold() for offer in offers}
        hidden = len(names) - len(self.rows)
        left = f"Not shown: {plural(hidden, 'model')} too big for this machine, or of unknown size." if hidden else ""
        self.note = " ".join(filter(None, (SLOW if self.rows and not self._best else "", left)))

    def key(self, offer: CatalogOffer) -> str:
        return offer.pair.id

    def _name(self, offer: CatalogOffer) -> Content:
        mark, style = (BEST, "bold") if offer is self._best else (NO_MARK, "")
        return Content.styled(mark, "$accent").append(text(name_of(offer), style))

    def details(self, offer: CatalogOffer) -> list[Content]:
        pair = offer.pair
        best = "best for this machine" if offer is self._best else ""
        inside = f"{pair.method}, inside the model itself" if pair.method == MTP else f"{pair.method}, needs no file"
        if pair.first:
            inside = f"{offer.heads or 'some'} of them ship with Slipstream"
        needs = " · ".join(f"{count // 1024}k: {size(total)}" for count, total in sorted(offer.memory.items()))
        drafter = _file(pair.drafter) if pair.drafter else Content.styled(clean(inside), "$foreground 70%")
        why_not = unserved(pair)
        return [
            heading(name_of(offer), pair.target.quant, pair.licence, best),
            expected(offer.speed),
            fit_block(offer.fit) if offer.fit else Content(""),
            Content(f"Memory by context, with the drafter: {needs}" if needs else ""),
            below(Content("Target  ").append(_file(pair.target)), Content("Drafter ").append(drafter)),
            Content(f"It is here: {clean(offer.installed)}" if offer.installed else "").stylize("$success"),
            Content(f"{sentence(why_not)}; the model is fetched without it." if why_not else "").stylize("$warning"),
            below(
                Content(evidence(pair.evidence)),
                Content(pair.note and f"Catalogue's note: {clean(pair.note)}").stylize("$foreground 60%"),
            ),
        ]


def name_of(offer: CatalogOffer) -> str:
    return offer.pair.target.model or offer.pair.family or offer.pair.id


def evidence(kind: str) -> str:
    return {
        "documentation": "A publisher documents this pair.",
        "catalogue": "Another public catalogue lists this pair.",
        "reported": "Others report that this pair works.",
        "suggested": "Untested pair.",
    }.get(kind, "")


def _drafter(offer: CatalogOffer) -> Content:
    pair = offer.pair
    if offer.heads:
        return Content(plural(offer.heads, "drafter"))
    amount = parameters(pair.drafter.params) if pair.drafter and pair.method == DRAFT else ""
    if unserved(pair):
        return Content("–").stylize("$foreground 50%")
    return Content(clean(f"{pair.method} {amount}".strip()))


def _file(file: CatalogFile) -> Content:
    name = text("/".join(part for part in (file.repo or file.model, file.file) if part))
    amount = f" · {size(file.size)}" if file.size else f" · about {size(file.about)}" if file.about else ""
    return name.append(Content(amount)).stylize("$foreground 70%")


def offered(offers: Sequence[CatalogOffer], here: bool) -> Content:
    """The suggestion: ``KEY`` fetches the first model, or loads it if ``here``; the next one is named."""
    offer, *others = offers
    name = one_line(name_of(offer))
    pair = offer.pair
    ships = f" with its {plural(offer.heads, 'drafter')}" if offer.heads else ""
    if here:
        words, more = f"{KEY} goes on with {name}{ships}", "It is here now; the chat keeps its text."
    else:
        amount = size(pair.target.about + (pair.drafter.about if pair.drafter else 0))
        words = f"{KEY} fetches {name}{' with its drafter' if pair.drafter else ships}, {amount}"
        assumed = offer.speed is not None and offer.speed.basis == "assumed"
        quick = "probably quick enough" if assumed else "and quick enough here"
        more = f"{'It answers' if pair.first else 'Far better'}, {quick}. Nothing is sent until then."
    if others:
        more = f"Better answers: {one_line(name_of(others[0]))}, {size(others[0].pair.target.about)} (Ctrl-L, 2)."
    at = words.index(name)
    spans = [Span(0, len(KEY), "bold $primary"), Span(at, at + len(name), "bold")]
    return Content(words, spans).append(Content(f"\n{more}").stylize("$foreground 60%"))


def larger(offer: CatalogOffer, here: bool) -> str:
    """What to try where guessing gains nothing: the suggested model."""
    how = f"loads {one_line(name_of(offer))}" if here else f"fetches {one_line(name_of(offer))}"
    return f"{KEY} {how} ({size(offer.pair.target.about)})."


class PairsScreen(Dialog["PairOffer | None"]):
    """Lists drafters. Closes with the one to use or to fetch, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("d", "dismiss", "Back")]

    def __init__(self, model: str, pairs: Sequence[PairOffer]) -> None:
        super().__init__()
        self._model, self._pairs = model, pairs

    def compose(self) -> ComposeResult:
        with sheet(Vertical(id="pairs"), f"Drafters for {one_line(self._model)}", "Enter uses or fetches", "Esc back"):
            yield OptionList(*(Option("") for _ in self._pairs), markup=False)
            legend = "● ready   ↓ Enter fetches it   ✗ not supported" if self._pairs else ""
            nothing = "No drafter is known for this model. lookup drafts for every model, from its own text."
            yield Static(Content(legend or nothing), classes="detail")

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.display = bool(self._pairs)
        options.highlighted = 0 if self._pairs else None
        options.focus()

    def on_resize(self) -> None:
        options = self.query_one(OptionList)
        room = max(min(self.size.width, WIDTH) - BORDERS, 16)
        for at, pair in enumerate(self._pairs):
            options.replace_option_prompt_at_index(at, _row(pair, room))

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        pair = self._pairs[event.option_index]
        if pair.why_not:
            hint(self, f"{one_line(pair.name)} cannot guess for this model.")
        else:
            self.dismiss(pair)


def _row(pair: PairOffer, room: int) -> Content:
    mark, colour = (CANNOT, "$error") if pair.why_not else (READY, "$success") if pair.ready else (FETCH, "$primary")
    name = text(pair.name, "" if pair.why_not else "bold")
    facts = [one_line(pair.method)]
    if pair.gain:
        facts.append(f"{times(pair.gain)} measured here")
    if pair.fetch:
        facts.append(f"fetch {size(pair.size)}" if pair.size else "fetch it")
    elif pair.size:
        facts.append(size(pair.size))
    first = Content(mark).stylize(colour).append(name).append(Content(f" · {' · '.join(facts)}"))
    reasons = [pair.why_not, pair.instead, "" if pair.why_not else pair.source, pair.note]
    lines = [f"  {line}" for reason in reasons if reason for line in wrap(one_line(reason), room - 2)]
    row = first.append(Content("".join(f"\n{line}" for line in lines)).stylize("$foreground 65%"))
    return row.stylize("$foreground 55%", len(mark)) if pair.why_not else row
