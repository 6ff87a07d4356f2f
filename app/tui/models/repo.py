"""A repository of the hub: its quantizations, how they would run here, and its card.

The quantizations of a repository.

A repository's card: Markdown from a stranger, shown inert and never for long at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Markdown, Static

from slipstream.app.library.format import context, number, size
from slipstream.app.platform.safe_text import clean, one_line, sentence
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.machine import BEST, NO_MARK, expected, fit_block, tok_per_s, verdict
from slipstream.app.tui.models.search import changed
from slipstream.app.tui.parts.browser import Browser, BrowsingScreen, TableView, heading, text
from slipstream.app.tui.parts.key_bar import KeyBar
from slipstream.app.tui.parts.table import Column
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.library.manager import QuantOffer
    from slipstream.models.hub.types import RepoSummary
    from slipstream.models.library.catalog import CatalogFile


COLUMNS = (
    Column("  Quantization"),
    Column("Size", 0, right=True),
    Column("Memory", 2, right=True),
    Column("tok/s", 0, right=True),
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
            tok_per_s(offer.speed.plain if offer.speed else None),
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
            expected(offer.speed),
            fit_block(offer.fit),
            Content("" if offer.quant.drafts else self._along(at)),
            Content(names).stylize("$foreground 60%"),
            Content(f"It is here: {clean(offer.installed)}" if offer.installed else "").stylize("$success"),
        ]

    def _along(self, at: int) -> str:
        """What is fetched along with a model."""
        parts = []
        if self._drafter:
            amount = f", {size(self._drafter.about)}" if self._drafter.about else ""
            parts.append(f"Its drafter comes along: {clean(self._drafter.model)}{amount}")
        projector = self.offers[at].quant.projector
        if projector:
            parts.append(f"It sees images: its mmproj file comes along, {size(projector.size)}")
        return "\n".join(parts)


LONGEST = 12_000
"""Characters of a card that are shown."""
MOST_LINES = 400
"""Lines of a card that are shown: each may become a widget."""
MOST_CELLS = 600
"""Cells of tables; lines beyond are shown as text. A table of 8,000 cells takes Textual 8.2.8 half a minute."""
PIECE = 1_200
"""Characters that are laid out at a time; keys are heard in between."""
REST = "*The rest is on its page.*"
NONE = "*It has no card.*"


class Card(Markdown):
    """Markdown whose links only tell that they were clicked."""

    def __init__(self) -> None:
        """Begins empty."""
        super().__init__("", open_links=False)

    @work(exclusive=True, group="card")
    async def show(self, card: str) -> None:
        """Lays a card out piece by piece."""
        for piece in pieces(card):
            await self.append(f"{piece}\n\n")
            await asyncio.sleep(0)


def pieces(card: str) -> list[str]:
    """Cuts a card at its paragraphs into pieces that are quick to lay out, and leaves out what is too much."""
    lines = clean(card)[:LONGEST].split("\n")
    whole = len(card) <= LONGEST and len(lines) <= MOST_LINES
    lines = lines[:MOST_LINES] if whole else lines[: min(MOST_LINES, len(lines) - 1)] or [lines[0][:PIECE]]
    cells = 0
    for at, line in enumerate(lines):
        cells += line.count("|")
        if cells > MOST_CELLS:
            lines[at] = line.replace("|", "¦")
    found = [""]
    for paragraph in "\n".join(lines).split("\n\n"):
        if len(found[-1]) + len(paragraph) > PIECE:
            found.append("")
        found[-1] = f"{found[-1]}\n\n{paragraph}" if found[-1] else paragraph
    if not whole:
        found.append(REST)
    return found if any(piece.strip() for piece in found) else [NONE]


WIDE = 120
"""Columns from which the card stands beside the list."""


class RepoScreen(BrowsingScreen["QuantOffer | None"]):
    """Closes with the quantization to fetch, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "fetch", "Fetch"),
        Binding("c", "card", "Card"),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("escape,ctrl+l", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, models: ModelsAccess, repo: RepoSummary, drafter: CatalogFile | None) -> None:
        """Keeps which repository.

        Args:
            models: Access to the hub.
            repo: What the search told of it.
            drafter: What is fetched along with its models.
        """
        self.quants = QuantsView(drafter)
        super().__init__(self.quants)
        self._models = models
        self._repo = repo
        self.card = Card()

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        repo = self._repo
        facts = [one_line(repo.license), f"{number(repo.downloads)} downloads", f"{number(repo.likes)} likes"]
        facts += [f"changed {when} ago" if (when := changed(repo)) else "", "gated" if repo.gated else ""]
        title = Content("◢ ").stylize("$primary").append(Content(one_line(repo.id)).stylize("bold"))
        more = Content("  " + " · ".join(fact for fact in facts if fact)).stylize("$foreground 70%")
        yield Static(title.append(more), classes="machine")
        with Horizontal(classes="repo"):
            yield self.browser
            with VerticalScroll(classes="card"):
                yield self.card
        yield KeyBar()

    def on_mount(self) -> None:
        """Asks the hub."""
        repo = self._repo.id
        self.browser.rows.focus()
        self._models.ask(self, lambda models: models.quants(repo), self._quants_came, self._no_quants)
        self._models.ask(self, lambda models: models.card(repo), self.card.show, self._no_card)

    def on_resize(self) -> None:
        """Puts the card where there is room for it."""
        self.set_class(self.size.width >= WIDE, "wide")
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers what can be done now."""
        if action == "card":
            return not self.has_class("wide")  # it stands beside the list there
        return self.browser.at is not None if action == "fetch" else True

    def _quants_came(self, offers: list[QuantOffer]) -> None:
        self.quants.offers, self.quants.ready = offers, True
        self.browser.draw()
        best = next((at for at, offer in enumerate(offers) if offer.best), 0)
        self.browser.rows.highlighted = best if offers else None
        self.refresh_bindings()

    def _no_quants(self, error: SlipstreamError) -> None:
        self.quants.ready = True
        self.quants.error = f"{sentence(error.title)}\n{error.hint}"
        self.browser.draw()

    def _no_card(self, error: SlipstreamError) -> None:
        self.card.show(f"*{sentence(error.title)}*")

    def action_card(self) -> None:
        """Shows the card, or the quantizations again."""
        self.toggle_class("reading")

    def action_page(self, direction: int) -> None:
        """Scrolls the card where it is read, else the list."""
        if self.has_class("reading") or self.has_class("wide"):
            card = self.query_one(".card", VerticalScroll)
            (card.scroll_page_down if direction > 0 else card.scroll_page_up)(animate=False)
        else:
            self.browser.move(10 * direction)

    @on(Browser.Chosen)
    def action_fetch(self) -> None:
        """Closes with the quantization under the bar."""
        at = self.browser.at
        if at is None:
            return
        offer = self.quants.offers[at]
        if offer.fit.verdict == "too big":
            self.say(f"It is too big for this machine: {offer.fit.why}")
        else:
            self.dismiss(offer)

    @on(Markdown.LinkClicked)
    def _link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Copies an address; it is never opened from here."""
        self.app.copy_to_clipboard(message.href)
        self.say("Copied the address; slipstream opens no links.")
