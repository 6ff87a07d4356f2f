"""The hub on the screen: the tab that searches it, and a repository with its quantizations and its card.

The card is untrusted Markdown: it is shown inert, cut to a maximum size, and laid out in pieces.
"""

import asyncio
from datetime import UTC, datetime
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Markdown

from slipstream.app.library.format import context, number, parameters, size
from slipstream.app.library.offers import QuantOffer
from slipstream.app.platform.safe_text import clean, one_line, sentence
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.models.context import ModelsAccess
from slipstream.app.tui.models.machine import BEST, NO_MARK, expected, fit_block, tok_per_s, verdict
from slipstream.app.tui.parts.browser import Browser, BrowsingScreen, Column, TableView, below, heading, text
from slipstream.app.tui.parts.format import ago
from slipstream.models.errors import SlipstreamError
from slipstream.models.hub.types import RepoSummary, Sort
from slipstream.models.library.catalog import CatalogFile
from slipstream.models.memory.row_cost import LITTLE

SORTS: tuple[Sort, ...] = ("downloads", "likes", "trending", "updated")
LONGEST = 12_000  # maximum characters of a card
MOST_LINES = 400  # maximum lines of a card: each may become a widget
MOST_CELLS = 600
"""Maximum table cells; further lines are shown as text. Textual 8.2.8 takes half a minute for 8,000 cells."""
PIECE = 1_200  # characters that are laid out at a time, so that keys are handled in between
REST = "*The rest is on its page.*"
NONE = "*It has no card.*"
WIDE = 120  # width from which the card is next to the list


class SearchLine(Input):
    """The search text; its binding labels Enter in the footer. In an empty line, a digit chooses a tab as elsewhere."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Search or open")]

    async def _on_key(self, event: events.Key) -> None:
        if event.character and event.character in "1234" and not self.value:
            event.prevent_default()  # which would type it
            await self.screen.run_action(f"tab({int(event.character) - 1})")


class SearchView(TableView["RepoSummary"]):
    """Repositories that a search found."""

    waiting = "Words, owner/name, or the address of a page; Enter asks the hub."
    nothing = "Nothing was found. Fewer words find more."

    def __init__(self) -> None:
        super().__init__()
        self.asked = ""
        self.sort_by("downloads")

    def sort_by(self, sort: Sort) -> None:
        self.sort, arrow = sort, {sort: " ▾"}
        self.columns = (
            Column("Repository", lambda repo: text(repo.id)),
            Column("", lambda repo: Content("gated" if repo.gated else ""), 1, style="$warning"),
            Column("Params", lambda repo: Content(parameters(repo.total_params)), 1, right=True),
            Column(
                f"Downloads{arrow.get('downloads', '')}", lambda repo: Content(number(repo.downloads)), 1, right=True
            ),
            Column(f"Likes{arrow.get('likes', '')}", lambda repo: Content(number(repo.likes)), 2, right=True),
            Column(
                f"Updated{arrow.get('updated', '')}", lambda repo: Content(changed(repo)), 3, True, "$foreground 60%"
            ),
        )

    def key(self, repo: RepoSummary) -> str:
        return repo.id

    def details(self, repo: RepoSummary) -> list[Content]:
        tokens = f"{context(repo.context)} context" if repo.context else ""
        size = f"{parameters(repo.total_params)} parameters" if repo.total_params else ""
        gated = "Gated: accept its licence on its page, and set HF_TOKEN, before fetching." if repo.gated else ""
        facts = " · ".join(part for part in (repo.architecture, size, tokens) if part)
        liked = Content(f"{repo.downloads:,} downloads in 30 days · {repo.likes:,} likes").stylize("$foreground 70%")
        return [heading(repo.id, repo.license), below(text(facts), liked), Content(gated).stylize("$warning")]


def changed(repo: RepoSummary) -> str:
    if repo.updated is None:
        return ""
    when = repo.updated if repo.updated.tzinfo else repo.updated.replace(tzinfo=UTC)
    seconds = (datetime.now(UTC) - when).total_seconds()
    if seconds < 60 * 86400:
        return ago(seconds)
    months = seconds / (30.44 * 86400)
    return f"{months:.0f} months" if months < 23.5 else f"{months / 12:.0f} years"


class QuantsView(TableView["QuantOffer"]):
    """The quantizations; a star marks the best for this machine."""

    waiting = "Asking the hub …"
    nothing = "There are no GGUF models in this repository."

    def __init__(self, drafter: CatalogFile | None) -> None:
        super().__init__()
        self._drafter = drafter
        self.columns = (
            Column("  Quantization", self._label),
            Column("Size", lambda offer: Content(size(offer.quant.size)), right=True),
            Column("Memory", lambda offer: Content(size(offer.fit.need.total)), 2, right=True),
            Column("tok/s", lambda offer: tok_per_s(offer.speed), right=True),
            Column("Fits", lambda offer: verdict(offer.fit)),
            Column("Context", self._context, 1, right=True),
            Column("", self._remarks, 2, style="$foreground 60%"),
        )

    def key(self, offer: QuantOffer) -> str:
        return offer.quant.label

    def _label(self, offer: QuantOffer) -> Content:
        mark, style = (BEST, "bold") if offer.best else (NO_MARK, "")
        return Content.styled(mark, "$accent").append(text(offer.quant.label, style))

    def _context(self, offer: QuantOffer) -> Content:
        return Content("" if offer.fit.verdict == "too big" else context(offer.fit.n_ctx))

    def _remarks(self, offer: QuantOffer) -> Content:
        parts = f"{count} files" if (count := len(offer.quant.files)) > 1 else ""
        drafts = "drafts only" if offer.quant.drafts else ""
        return Content(" · ".join(filter(None, ("here" if offer.installed else "", parts, drafts))))

    def details(self, offer: QuantOffer) -> list[Content]:
        files = offer.quant.files
        names = clean(files[0].name) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
        return [
            heading(offer.quant.label, "best for this machine" if offer.best else ""),
            below(expected(offer.speed), Content(_drafting(offer.drafting)).stylize("$foreground 70%")),
            fit_block(offer.fit),
            Content("" if offer.quant.drafts else self._along(offer)),
            Content(names).stylize("$foreground 60%"),
            Content(f"It is here: {clean(offer.installed)}" if offer.installed else "").stylize("$success"),
        ]

    def _along(self, offer: QuantOffer) -> str:
        parts = []
        if self._drafter:
            amount = f", {size(self._drafter.about)}" if self._drafter.about else ""
            parts.append(f"Its drafter comes along: {clean(self._drafter.model)}{amount}")
        if projector := offer.quant.projector:
            parts.append(f"It sees images: its mmproj file comes along, {size(projector.size)}")
        return "\n".join(parts)


def _drafting(gain: float) -> str:
    if not gain:
        return ""
    return f"A good step of drafting gains {gain:.1f}x." if gain >= LITTLE else "Drafting gains little."


class Card(Markdown):
    """Markdown that posts clicks on links instead of opening them."""

    def __init__(self) -> None:
        super().__init__("", open_links=False)

    @work(exclusive=True, group="card")
    async def show(self, card: str) -> None:
        for piece in pieces(card):
            await self.append(f"{piece}\n\n")
            await asyncio.sleep(0)


def pieces(card: str) -> list[str]:
    """Cuts a card between paragraphs into pieces that are quick to lay out; drops text beyond the limits."""
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


class RepoScreen(BrowsingScreen["QuantOffer | None"]):
    """Shows a repository. Closes with the quantization to fetch, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "fetch", "Fetch"),
        Binding("c", "card", "Card"),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("escape,ctrl+l", "leave", "Back", key_display="Esc", priority=True),
    ]

    def __init__(self, models: ModelsAccess, repo: RepoSummary, drafter: CatalogFile | None) -> None:
        self.quants = QuantsView(drafter)
        super().__init__(self.quants)
        self._models, self._repo = models, repo
        self.card = Card()

    def compose(self) -> ComposeResult:
        repo = self._repo
        facts = [one_line(repo.license), f"{number(repo.downloads)} downloads", f"{number(repo.likes)} likes"]
        facts += [f"changed {when} ago" if (when := changed(repo)) else "", "gated" if repo.gated else ""]
        title = Content("◢ ").stylize("$primary").append(Content(one_line(repo.id)).stylize("bold"))
        more = Content("  " + " · ".join(fact for fact in facts if fact)).stylize("$foreground 70%")
        self.title_line.update(title.append(more))
        yield self.title_line
        with Horizontal(classes="repo"):
            yield self.browser
            with VerticalScroll(classes="card"):
                yield self.card
        yield KeyBar()

    def on_mount(self) -> None:
        repo = self._repo.id
        ask = self._models.ask_hub
        ask(self, lambda models: models.quants(repo), self._quants_came, self._no_quants, slow=self._slow)
        self._models.ask(self, lambda models: models.card(repo), self.card.show, self._no_card)

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "wide")
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "card":
            return not self.has_class("wide")  # it is next to the list there
        return self.browser.row is not None if action == "fetch" else True

    def _quants_came(self, offers: list[QuantOffer]) -> None:
        self.quants.rows, self.quants.ready = offers, True
        self.browser.draw()
        best = next((at for at, offer in enumerate(offers) if offer.best), 0)
        self.browser.rows.highlighted = best if offers else None

    def _no_quants(self, error: SlipstreamError) -> None:
        self.quants.ready = True
        self.quants.error = f"{sentence(error.title)}\n{error.hint}"
        self.browser.draw()

    def _slow(self, words: str) -> None:
        self.quants.waiting = words
        self.browser.draw()

    def action_leave(self) -> None:
        self._models.stop_waiting()
        super().action_leave()

    def _no_card(self, error: SlipstreamError) -> None:
        self.card.show(f"*{sentence(error.title)}*")

    def action_card(self) -> None:
        self.toggle_class("reading")

    def action_page(self, direction: int) -> None:
        if self.has_class("reading") or self.has_class("wide"):
            card = self.query_one(".card", VerticalScroll)
            (card.scroll_page_down if direction > 0 else card.scroll_page_up)(animate=False)
        else:
            self.browser.move(10 * direction)

    @on(Browser.Chosen)
    def action_fetch(self) -> None:
        offer: QuantOffer | None = self.browser.row
        if offer and offer.fit.verdict == "too big":
            self.say(f"It is too big for this machine: {offer.fit.why}")
        elif offer:
            self.dismiss(offer)
