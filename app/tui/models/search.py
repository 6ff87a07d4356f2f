"""The tab that searches the hub."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input

from slipstream.app.library.format import context, number, parameters
from slipstream.app.tui.parts.browser import TableView, below, heading, text
from slipstream.app.tui.parts.format import ago
from slipstream.app.tui.parts.table import Column

if TYPE_CHECKING:
    from slipstream.models.hub.types import RepoSummary, Sort

SORTS: tuple[Sort, ...] = ("downloads", "likes", "trending", "updated")


class SearchLine(Input):
    """The search text; its binding labels Enter in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Search or open")]


class SearchView(TableView):
    """Repositories that a search found."""

    waiting = "Words, owner/name, or the address of a page; Enter asks the hub."
    nothing = "Nothing was found. Fewer words find more."

    def __init__(self) -> None:
        self.found: list[RepoSummary] = []
        self.asked = ""
        self.sort: Sort = "downloads"

    @property
    def columns(self) -> Sequence[Column]:
        """The columns; an arrow marks the sort order."""
        arrow = {self.sort: " ▾"}
        return (
            Column("Repository"),
            Column("", 1, style="$warning"),
            Column("Params", 1, right=True),
            Column(f"Downloads{arrow.get('downloads', '')}", 1, right=True),
            Column(f"Likes{arrow.get('likes', '')}", 2, right=True),
            Column(f"Updated{arrow.get('updated', '')}", 3, right=True, style="$foreground 60%"),
        )

    def next_sort(self) -> None:
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]

    def __len__(self) -> int:
        return len(self.found)

    def key(self, at: int) -> str:
        return self.found[at].id

    def cells(self, at: int) -> list[Content]:
        repo = self.found[at]
        return [
            text(repo.id),
            Content("gated" if repo.gated else ""),
            Content(parameters(repo.total_params)),
            Content(number(repo.downloads)),
            Content(number(repo.likes)),
            Content(changed(repo)),
        ]

    def details(self, at: int) -> list[Content]:
        repo = self.found[at]
        tokens = f"{context(repo.context)} context" if repo.context else ""
        size = f"{parameters(repo.total_params)} parameters" if repo.total_params else ""
        gated = "Gated: accept its licence on its page, and set HF_TOKEN, before fetching." if repo.gated else ""
        facts = " · ".join(part for part in (repo.architecture, size, tokens) if part)
        liked = Content(f"{repo.downloads:,} downloads in 30 days · {repo.likes:,} likes").stylize("$foreground 70%")
        return [heading(repo.id, repo.license), below(text(facts), liked), Content(gated).stylize("$warning")]


def changed(repo: RepoSummary) -> str:
    """The time since a repository's last change."""
    if repo.updated is None:
        return ""
    when = repo.updated if repo.updated.tzinfo else repo.updated.replace(tzinfo=UTC)
    seconds = (datetime.now(UTC) - when).total_seconds()
    if seconds < 60 * 86400:
        return ago(seconds)
    months = seconds / (30.44 * 86400)
    return f"{months:.0f} months" if months < 23.5 else f"{months / 12:.0f} years"
