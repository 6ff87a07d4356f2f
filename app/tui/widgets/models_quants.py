"""The quantizations of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from slipstream.app.safe_text import clean
from slipstream.app.tui.widgets.models_table import Column
from slipstream.app.tui.widgets.models_view import BEST, NO_MARK, TableView, fit_block, heading, text, verdict
from slipstream.app.tui.widgets.models_words import context, size

if TYPE_CHECKING:
    from slipstream.app.models.manager import QuantOffer
    from slipstream.models.catalog import CatalogFile

COLUMNS = (
    Column("  Quantization"),
    Column("Size", 0, right=True),
    Column("Memory", 2, right=True),
    Column("Fits", 0),
    Column("Context", 1, right=True),
    Column("", 2, style="$foreground 60%"),
)


class QuantsView(TableView):
    """Label, size, where it fits and with which context; a star marks the best for this machine."""

    waiting = "Asking the hub …"
    nothing = "There are no GGUF models in this repository."

    def __init__(self, drafter: CatalogFile | None) -> None:
        """Begins with an empty list.

        Args:
            drafter: What is fetched along with a model.
        """
        self.offers: list[QuantOffer] = []
        self._drafter = drafter

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return COLUMNS

    def __len__(self) -> int:
        """How many there are."""
        return len(self.offers)

    def key(self, at: int) -> str:
        """Its label."""
        return self.offers[at].quant.label

    def cells(self, at: int) -> list[Content]:
        """A quantization."""
        offer = self.offers[at]
        quant, fit = offer.quant, offer.fit
        parts = f"{len(quant.files)} files" if len(quant.files) > 1 else ""
        drafts = "drafts only" if quant.drafts else ""
        here = "here" if offer.installed else ""
        return [
            Content(BEST if offer.best else NO_MARK)
            .stylize("$accent")
            .append(text(quant.label, "bold" if offer.best else "")),
            Content(size(quant.size)),
            Content(size(fit.need.total)),
            verdict(fit),
            Content("" if fit.verdict == "too big" else context(fit.n_ctx)),
            Content(" · ".join(part for part in (here, parts, drafts) if part)),
        ]

    def details(self, at: int) -> list[Content]:
        """How it would run here, and which files it is."""
        offer = self.offers[at]
        files = offer.quant.files
        names = clean(files[0].name) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
        return [
            heading(offer.quant.label, "best for this machine" if offer.best else ""),
            fit_block(offer.fit),
            Content("" if offer.quant.drafts else self._along()),
            Content(names).stylize("$foreground 60%"),
            Content(f"It is here: {clean(offer.installed)}" if offer.installed else "").stylize("$success"),
        ]

    def _along(self) -> str:
        """What is fetched along with a model."""
        if self._drafter is None:
            return ""
        amount = f", {size(self._drafter.about)}" if self._drafter.about else ""
        return f"Its drafter comes along: {clean(self._drafter.model)}{amount}"
