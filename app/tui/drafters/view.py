"""The drafters of a model as rows, and what is known of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from textual.content import Content

from slipstream.app.library.format import size
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol import AUTO, PLAIN, DrafterOffer
from slipstream.app.speed import times
from slipstream.app.tui.parts.browser import TableView, below, heading, text
from slipstream.app.tui.parts.format import plural, rate
from slipstream.app.tui.parts.table import GAP, Column
from slipstream.models.outside import shown_path

if TYPE_CHECKING:
    from slipstream.app.library.drafter_status import Standing
    from slipstream.app.library.heads_files import HeadsFile

IN_USE, READY, CANNOT = "● ", "  ", "✗ "
_AUTO: Final = 4
_HERE: Final = 5
_WIDTHS: Final = (2, 4, 8, 16)
"""Rows whose cost is shown."""

WOULD: Final = {
    "draft": "Ctrl-L, then d: fetch or choose a smaller model.",
    "medusa": "t trains heads here, i imports published ones.",
    "kangaroo": "t trains an adapter here, i imports a published one.",
    "space": "t trains it here.",
    "retrieval": "f indexes a folder; chats are indexed by themselves.",
    "eagle3": "Ctrl-L, then d: fetch heads, where there are some.",
}
"""What would make a drafter serve."""


class DraftersView(TableView):
    """All drafters; the one in use is marked, and those that cannot be used are dimmed."""

    ready = True

    def __init__(self, offers: Sequence[DrafterOffer], current: str, plain_tok_per_s: float | None) -> None:
        """Keeps what to list.

        Args:
            offers: All drafters.
            current: The one that drafts the next reply.
            plain_tok_per_s: Speed without one; None until it is known.
        """
        self.offers, self.current = offers, current
        self._plain = plain_tok_per_s
        self.standing: Standing | None = None
        """What is known of them, once it is."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return (Column("drafter"), Column("auto", 1), Column("here", 0, right=True), Column("what it does", 2))

    def __len__(self) -> int:
        """All drafters."""
        return len(self.offers)

    def key(self, at: int) -> str:
        """A name."""
        return self.offers[at].name

    def lines(self, width: int) -> list[Content]:
        """The rows; what a drafter does, or why it cannot, gets the room that is left."""
        names = max(len(one_line(offer.name)) for offer in self.offers) + len(IN_USE)
        here = _HERE + GAP if any(self._gain_of(offer.name) is not None for offer in self.offers) else 0
        self._room = max(width - max(names, len("drafter")) - _AUTO - here - 2 * GAP, 0)
        return super().lines(width)

    def cells(self, at: int) -> list[Content]:
        """Name, whether the autopilot may choose it, its gain here, what it does."""
        offer = self.offers[at]
        current = offer.name == self.current
        mark = IN_USE if current else READY if offer.usable else CANNOT
        words = one_line(offer.about if offer.usable else offer.why_not)
        row = [
            Content(mark).stylize("$primary" if current else "").append(text(offer.name, "bold" * offer.usable)),
            Content(self._in_auto(offer)),
            _gain(self._gain_of(offer.name)),
            Content(words).truncate(self._room, ellipsis=True) if self._room > len("what it does") else Content(""),
        ]
        return row if offer.usable else [cell.stylize("$foreground 45%") for cell in row]

    def _gain_of(self, name: str) -> float | None:
        return self.standing.gain(name) if self.standing else None

    def is_off(self, name: str) -> bool:
        """Whether the autopilot leaves a drafter out."""
        return bool(self.standing and name in self.standing.left_out)

    def _in_auto(self, offer: DrafterOffer) -> str:
        if offer.name in (AUTO, PLAIN):
            return ""
        return "off" if self.is_off(offer.name) else "on" if offer.usable else "–"

    def details(self, at: int) -> list[Content]:
        """What it does or why it cannot, what came of it here, and its files."""
        offer, standing = self.offers[at], self.standing
        marks = ("in use" if offer.name == self.current else "", "off for auto" if self.is_off(offer.name) else "")
        said = Content(one_line(offer.about)).stylize("$foreground 80%")
        blocks = [below(heading(offer.name, *marks), said)]
        if not offer.usable:
            why = Content(f"Not for this model: {one_line(offer.why_not).rstrip('.')}.")
            blocks.append(below(why, Content(WOULD.get(offer.name, "")).stylize("$primary")))
        if standing is None:
            return [*blocks, Content("Looking …").stylize("$foreground 55%")]
        blocks.append(self._gains(offer.name, standing))
        blocks += [_file(file) for file in standing.of(offer.name)]
        if offer.name == "retrieval":
            blocks.append(_index(standing))
        return blocks

    def _gains(self, name: str, standing: Standing) -> Content:
        """Speed over plain decoding, and where that is known from."""
        if name == PLAIN:
            return Content(f"{rate(self._plain)} tok/s now." if self._plain else "The next reply measures its speed.")
        found = [
            f"{times(gains[name])} {where}"
            for gains, where in (
                (standing.in_chats, "in your chats"),
                (standing.benched, "in the last benchmark"),
                (standing.learnt, "as the autopilot learnt"),
            )
            if name in gains
        ]
        lines = [Content(f"Speed here: {' · '.join(found)}." if found else "Not measured here yet.")]
        if name == AUTO:
            costs = [f"{rows} costs {standing.costs[rows]:.1f}" for rows in _WIDTHS if rows in standing.costs]
            lines.append(Content(f"Checking tokens, in the time of one: {', '.join(costs)}" if costs else ""))
            off = sorted(standing.left_out)
            lines.append(Content(f"Automatic does not use: {', '.join(map(one_line, off))}." if off else ""))
        return below(*lines)


def _gain(gain: float | None) -> Content:
    if gain is None:
        return Content("")
    return Content(times(gain)).stylize("$success" if gain >= 1.05 else "$error" if gain < 0.95 else "")


def _file(file: HeadsFile) -> Content:
    """A file of heads: whether it serves, what it was trained on, where it is."""
    facts = [
        f"trained on {one_line(file.trained_on)}" if file.trained_on else "",
        "" if file.first_depth is None else f"first guess right {100 * file.first_depth:.0f} % of the time",
        "" if file.size is None else size(file.size),
    ]
    first = Content(" · ".join(fact for fact in facts if fact))
    verdict = "" if not file.why_not else f"Not supported: {file.why_not}."
    return below(
        first,
        Content(verdict).stylize("$foreground 65%"),
        Content(f"Stale: {file.stale}." if file.stale else "").stylize("$warning"),
        Content(shown_path(file.path)).stylize("$foreground 55%"),
    )


def _index(standing: Standing) -> Content:
    if not standing.index_on:
        return Content("The index is off: slipstream drafters index --on switches it on.").stylize("$warning")
    return Content(f"Indexed: {plural(standing.tokens, 'token')} of {standing.documents:,} chats and files.")
