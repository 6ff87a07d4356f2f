"""The acceptance rate of each drafter in a chat: bars by depth, and a sparkline over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from textual.content import Content
from textual.widget import Widget

from slipstream.app.chats.records import Figures
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.chat.authorship import DRAFTED, DRAFTERS
from slipstream.app.tui.parts.format import BARS, percent

SAMPLE = 24  # drafted tokens per point of the sparkline; fewer are too noisy
POINTS = 120
Depths = list[list[int]]  # per depth, from 1: [steps that reached it, steps that accepted a token there]


@dataclass(slots=True)
class Fared:
    """Acceptance counts of one drafter."""

    drafted: int = 0  # drafted tokens
    accepted: int = 0  # accepted tokens
    depths: Depths = field(default_factory=list)  # see ``Depths``
    # acceptance rates over time, oldest first; each covers ``SAMPLE`` or more drafted tokens, except a reply's last
    points: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(slots=True)
class _Reply:
    """A drafter's counts in the current reply, and the part of them that ``points`` covers."""

    drafted: int = 0
    accepted: int = 0
    depths: Depths = field(default_factory=list)
    drafted_told: int = 0
    accepted_told: int = 0


class AcceptanceRecord:
    """Sums the counts over the replies of a chat, including the current one."""

    def __init__(self) -> None:
        self._before: dict[str, Fared] = {}
        self._now: dict[str, _Reply] = {}

    def fill(self, figures: Iterable[Figures]) -> None:
        """Replaces all counts by the stored figures of a chat's replies, oldest first.

        Older versions stored the depths only for all drafters together; these are used if a reply had one drafter.
        """
        self._before, self._now = {}, {}
        for kept in figures:
            drafters = {name: count for name, count in kept.by_drafter.items() if count.get("drafted")}
            alone = {name: kept.by_depth for name in drafters} if len(drafters) == 1 else {}
            self.add(drafters, kept.drafter_depths or alone)
            self.end()

    def add(self, drafters: Mapping[str, Mapping[str, int]], depths: Mapping[str, Depths]) -> None:
        """Updates the counts of the current reply; they cover the reply from its beginning."""
        for name, count in drafters.items():
            if not count.get("drafted"):
                continue
            now = self._now.setdefault(name, _Reply())
            now.drafted, now.accepted = count["drafted"], count.get("accepted", 0)
            now.depths = depths.get(name, [])
            if now.drafted - now.drafted_told >= SAMPLE:
                self._mark(name, now)

    def end(self) -> None:
        """Adds the current reply to the sums."""
        for name, now in self._now.items():
            if now.drafted > now.drafted_told:
                self._mark(name, now)
            fared = self._before[name]
            fared.drafted += now.drafted
            fared.accepted += now.accepted
            fared.depths = _added(fared.depths, now.depths)
        self._now = {}

    def drafters(self) -> dict[str, Fared]:
        """The counts of each drafter, including the current reply; most drafted tokens first."""
        names = dict.fromkeys((*self._before, *self._now))
        all_of = {name: self._sum(self._before.get(name, Fared()), self._now.get(name, _Reply())) for name in names}
        return dict(sorted(all_of.items(), key=lambda item: -item[1].drafted))

    def _mark(self, name: str, now: _Reply) -> None:
        share = (now.accepted - now.accepted_told) / (now.drafted - now.drafted_told)
        self._before.setdefault(name, Fared()).points.append(share)
        now.drafted_told, now.accepted_told = now.drafted, now.accepted

    @staticmethod
    def _sum(before: Fared, now: _Reply) -> Fared:
        depths = _added(before.depths, now.depths)
        return Fared(before.drafted + now.drafted, before.accepted + now.accepted, depths, before.points)


def _added(first: Depths, second: Depths) -> Depths:
    both = zip_longest(first, second, fillvalue=[0, 0])
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in both]


NAME = 11  # columns of a drafter's name
COLUMN = 3  # columns of a depth
LARGE = 3  # lines of a drafter in the large layout
FAINT = "$foreground 55%"


class AcceptanceChart(Widget):
    """Shows as many drafters as fit."""

    def __init__(self, record: AcceptanceRecord) -> None:
        super().__init__()
        self._record = record

    def draw(self) -> None:
        self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1 + LARGE * len(self._record.drafters()), 2)

    def render(self) -> Content:
        """Draws each drafter in three lines, or in one if there is not enough room."""
        width, height = self.size.width, self.size.height
        drafters = self._record.drafters()
        if not drafters:
            return Content("Nothing was guessed yet.").stylize(FAINT).truncate(width, ellipsis=True)
        lines = [Content("% right by position, over time").stylize(FAINT)]
        large = 1 + LARGE * len(drafters) <= height
        for name, fared in drafters.items():
            lines += _large(name, fared, width) if large else [_small(name, fared, width)]
        return Content("\n").join([line.truncate(width) for line in lines[:height]])


def bars(shares: list[float]) -> str:
    """A bar for each share from 0 to 1."""
    return "".join(BARS[round(min(max(share, 0.0), 1.0) * (len(BARS) - 1))] for share in shares)


def _large(name: str, fared: Fared, width: int) -> list[Content]:
    """Name, acceptance rate and sparkline; then a bar and a figure for each depth."""
    shares = _shares(fared)[: max((width - NAME) // COLUMN, 1)]
    drawn = " ".join(2 * bars([share]) for share in shares)
    figures = " ".join(f"{100 * share:2.0f}"[:2] if share < 0.995 else "✓ " for share in shares)
    head = _head(name, fared)
    room = max(width - head.cell_length - 1, 1)
    return [
        head.append(Content(" " + bars(list(fared.points)[-room:])).stylize(_colour(name))),
        Content(f"{'  position':<{NAME}}").stylize(FAINT).append(Content(drawn).stylize(_colour(name))),
        Content(" " * NAME + figures).stylize(FAINT),
    ]


def _small(name: str, fared: Fared, width: int) -> Content:
    """Name, acceptance rate, a bar for each depth, and the sparkline."""
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
    """A drafter's colour, without the text attributes of its style."""
    return DRAFTERS.get(name, DRAFTED).split()[-1]
