"""How often each drafter is right: at each depth as bars, and over time as a sparkline."""

from __future__ import annotations

import time

from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from slipstream.app.safe_text import one_line
from slipstream.app.tui.figures import BARS, percent
from slipstream.app.tui.origins import DRAFTED, DRAFTERS
from slipstream.app.tui.widgets.acceptance_record import AcceptanceRecord, Fared

NAME = 11
"""Columns of a drafter's name."""
COLUMN = 3
"""Columns of a depth."""
LARGE = 3
"""Lines of a drafter where there is room for the figures."""
DRAW_EVERY = 0.25
"""Seconds between two pictures: shares change slowly."""
FAINT = "$foreground 55%"


class AcceptanceChart(Widget):
    """One drafter below the other, as many as fit."""

    def __init__(self, record: AcceptanceRecord) -> None:
        """Keeps what to draw."""
        super().__init__()
        self._record = record
        self._drawn_at = 0.0
        self._timer: Timer | None = None

    def soon(self) -> None:
        """Draws what the record says now, with the next picture."""
        if self._timer is None:
            wait = self._drawn_at + DRAW_EVERY - time.monotonic()
            self._timer = self.set_timer(max(wait, 0.001), self._draw)

    def _draw(self) -> None:
        self._timer = None
        self._drawn_at = time.monotonic()
        self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """Lines that all drafters take."""
        return max(1 + LARGE * len(self._record.drafters()), 2)

    def render(self) -> Content:
        """Draws all drafters in three lines each, or in one each where that is too much."""
        width, height = self.size.width, self.size.height
        drafters = self._record.drafters()
        if not drafters:
            return Content("Nothing was drafted yet.").stylize(FAINT).truncate(width, ellipsis=True)
        lines = [Content("accepted by depth, over time").stylize(FAINT)]
        large = 1 + LARGE * len(drafters) <= height
        for name, fared in drafters.items():
            lines += _large(name, fared, width) if large else [_small(name, fared, width)]
        return Content("\n").join([line.truncate(width) for line in lines[:height]])


def bars(shares: list[float]) -> str:
    """Shares as bars, of which the highest is 1."""
    return "".join(BARS[round(min(max(share, 0.0), 1.0) * (len(BARS) - 1))] for share in shares)


def _large(name: str, fared: Fared, width: int) -> list[Content]:
    """The name, the share and how it changed; below, a bar and a figure for each depth."""
    shares = _shares(fared)[: max((width - NAME) // COLUMN, 1)]
    drawn = " ".join(2 * bars([share]) for share in shares)
    figures = " ".join(f"{100 * share:2.0f}"[:2] if share < 0.995 else "✓ " for share in shares)
    head = _head(name, fared)
    room = max(width - head.cell_length - 1, 1)
    return [
        head.append(Content(" " + bars(list(fared.points)[-room:])).stylize(_colour(name))),
        Content(f"{'  by depth':<{NAME}}").stylize(FAINT).append(Content(drawn).stylize(_colour(name))),
        Content(" " * NAME + figures).stylize(FAINT),
    ]


def _small(name: str, fared: Fared, width: int) -> Content:
    """The name, the share, a bar for each depth, and how it changed."""
    head = _head(name, fared)
    depths = bars(_shares(fared)[:8])
    room = max(width - head.cell_length - len(depths) - 2, 0)
    over_time = bars(list(fared.points)[-room:]) if room else ""
    return head.append(Content(f" {depths} {over_time}").stylize(_colour(name)))


def _head(name: str, fared: Fared) -> Content:
    shown = Content(one_line(name)).truncate(NAME - 1, ellipsis=True, pad=True).stylize("bold")
    return shown.append(Content(f" {percent(fared.acceptance):>5}"))


def _shares(fared: Fared) -> list[float]:
    return [accepted / reached for reached, accepted in fared.depths if reached]


def _colour(name: str) -> str:
    """A drafter's colour, without the line that its text has."""
    return DRAFTERS.get(name, DRAFTED).split()[-1]
