"""A repository of the hub: its quantizations, how they would run here, and its card."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Markdown, Static

from slipstream.app.safe_text import one_line, sentence
from slipstream.app.tui.behind import behind
from slipstream.app.tui.models import Desk
from slipstream.app.tui.screens.browsing import BrowsingScreen
from slipstream.app.tui.widgets.key_bar import KeyBar
from slipstream.app.tui.widgets.models_browser import Browser
from slipstream.app.tui.widgets.models_card import Card
from slipstream.app.tui.widgets.models_quants import QuantsView
from slipstream.app.tui.widgets.models_search import changed
from slipstream.app.tui.widgets.models_words import number
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream.app.models.manager import QuantOffer
    from slipstream.models.catalog import CatalogFile
    from slipstream.models.hub_types import RepoSummary

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

    def __init__(self, desk: Desk, repo: RepoSummary, drafter: CatalogFile | None) -> None:
        """Keeps which repository.

        Args:
            desk: Who knows the hub.
            repo: What the search told of it.
            drafter: What is fetched along with its models.
        """
        self._quants = QuantsView(drafter)
        super().__init__(self._quants)
        self._desk = desk
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
        behind(self, lambda: self._desk.open().quants(repo), self._quants_came, self._no_quants)
        behind(self, lambda: self._desk.open().card(repo), self.card.show, self._no_card)

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
        self._quants.offers, self._quants.ready = offers, True
        self.browser.draw()
        best = next((at for at, offer in enumerate(offers) if offer.best), 0)
        self.browser.rows.highlighted = best if offers else None
        self.refresh_bindings()

    def _no_quants(self, error: SlipstreamError) -> None:
        self._quants.ready = True
        self._quants.error = f"{sentence(error.title)}\n{error.hint}"
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
        offer = self._quants.offers[at]
        if offer.fit.verdict == "too big":
            self._say(f"It is too big for this machine: {offer.fit.why}")
        else:
            self.dismiss(offer)

    @on(Markdown.LinkClicked)
    def _link_clicked(self, message: Markdown.LinkClicked) -> None:
        """Copies an address; it is never opened from here."""
        self.app.copy_to_clipboard(message.href)
        self._say("Copied the address; slipstream opens no links.")
