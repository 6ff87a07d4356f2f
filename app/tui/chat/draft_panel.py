"""The panel of the last draft trees and of each drafter's acceptance rate: bars by depth, and a sparkline over time."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer
from textual.visual import Visual
from textual.widget import Widget

from slipstream.app.chats.records import Figures, deeper
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import Done, DraftTree, Stepped
from slipstream.app.tui.chat.authorship import style_by
from slipstream.app.tui.chat.draft_tree import drawn, drawn_plain
from slipstream.app.tui.parts.format import BARS, percent

MOST = 100  # steps kept for scrolling back
EMPTY = Content("Guesses appear here during the next reply.").stylize("$foreground 55%")
DRAW_EVERY = 0.1  # seconds between two redraws, so that the reply has priority
BESIDE = 96  # screen width from which the panel is next to the transcript instead of below
CHART = 64  # width from which the chart is next to the trees
SAMPLE = 24  # drafted tokens per point of the sparkline; fewer are too noisy
POINTS = 120
Depths = list[list[int]]  # per depth, from 1: [steps that reached it, steps that accepted a token there]
NAME = 11  # columns of a drafter's name
COLUMN = 4  # columns of a depth
LARGE = 3  # lines of a drafter in the large layout
FAINT = "$foreground 55%"


class DraftTreeLog(ScrollView):
    """A log of steps that follows the newest while scrolled to the end. Draws only visible lines."""

    class Drawn(Message):
        """The log was redrawn; the chart is redrawn at the same rate."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[DraftTree] = deque(maxlen=MOST)  # the steps that are drawn, oldest first
        # first step and number of steps of each entry: plain steps are joined
        self._runs: deque[tuple[int, int]] = deque(maxlen=MOST)
        self._new: deque[tuple[DraftTree, int, int]] = deque(maxlen=MOST)  # added since the last redraw
        self._lines: list[Strip] = []
        self._heights: deque[int] = deque(maxlen=MOST)  # lines of each tree
        self._width = 0  # width of the drawn lines
        self._follows = True  # whether the view is scrolled to the end
        self._drawn_at = 0.0
        self._timer: Timer | None = None

    def add(self, trees: Sequence[DraftTree]) -> None:
        self._new.extend((tree, tree.step, 1) for tree in trees)
        if self._new and self._timer is None:
            wait = self._drawn_at + DRAW_EVERY - time.monotonic()
            self._timer = self.set_timer(max(wait, 0.001), self._draw)

    def empty(self) -> None:
        for kept in (self.kept, self._runs, self._new, self._lines, self._heights):
            kept.clear()
        self._measure()

    def on_resize(self) -> None:
        if self.scrollable_content_region.width != self._width:
            self._redraw()
        elif self._follows:
            self.scroll_end(animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follows the newest step once scrolled to the end, until scrolled up; new lines alone do not end this."""
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y:
            self._follows = True
        elif new_value < old_value:
            self._follows = False

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_attached:
            self._redraw()

    def _redraw(self) -> None:
        runs = [(tree, *run) for tree, run in zip(self.kept, self._runs, strict=True)]
        self._new.extendleft(reversed(runs))
        for kept in (self.kept, self._runs, self._lines, self._heights):
            kept.clear()
        self._draw()

    def _draw(self) -> None:
        if self._timer:
            self._timer.stop()
            self._timer = None
        self._drawn_at = time.monotonic()
        self._width = self.scrollable_content_region.width
        if self._width:
            follows, gone = self._follows, 0
            while self._new:
                gone += self._append(*self._new.popleft())
            if not follows and gone:
                self.scroll_to(y=self.scroll_y - gone, animate=False, immediate=True)  # the same lines stay visible
            self._measure()
            if follows:
                self.scroll_end(animate=False, force=True)
        self.post_message(self.Drawn())

    def _append(self, tree: DraftTree, first: int, count: int) -> int:
        """Adds a step, or a run of plain ones; returns the number of lines removed at the top."""
        skipped = first != (self.kept[-1].step if self.kept else 0) + 1
        if not tree.texts and self.kept and not self.kept[-1].texts:
            del self._lines[len(self._lines) - self._heights.pop() :]
            self.kept.pop()
            before, others = self._runs.pop()
            first, count = before, others + count
            skipped = count != tree.step - first + 1
        gone = self._heights[0] if len(self.kept) == MOST else 0
        del self._lines[:gone]
        width = self._width
        drawing = drawn(tree, width, skipped) if tree.texts else drawn_plain(first, tree.step, width, skipped)
        strips = Visual.to_strips(self, drawing, width, None, self.visual_style)
        self.kept.append(tree)
        self._runs.append((first, count))
        self._heights.append(len(strips))
        self._lines += strips
        return gone

    def _measure(self) -> None:
        self.virtual_size = Size(self._width, len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, line = self.size.width, self.scroll_offset.y + y
        blank = Strip.blank(width, self.rich_style)  # a blank without a style would crash the chat under NO_COLOR
        if not self._lines:
            said = Visual.to_strips(self, EMPTY, width, None, self.visual_style)
            return said[y].extend_cell_length(width, self.rich_style) if y < len(said) else blank
        strip = self._lines[line] if line < len(self._lines) else blank
        return strip.crop_extend(0, width, self.rich_style)


class SplitView(Container):
    """Lays out the transcript and the panel side by side, or stacked on a narrow screen."""

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= BESIDE, "beside")
        self.set_class(event.size.width < CHART, "narrow")


class DraftPanel(Container):
    """The draft trees and the acceptance chart; hidden until F4."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "screen.command('to-prompt')", "Back", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self._record = AcceptanceRecord()
        self.trees = DraftTreeLog()  # the last steps
        self.chart = AcceptanceChart(self._record)  # acceptance of each drafter in this chat
        self.display = False
        self.border_title = Content("✓━ right ✗ wrong │ own word … left out 42 %")

    def compose(self) -> ComposeResult:
        yield self.chart
        yield self.trees

    def fill(self, figures: Iterable[Figures]) -> None:
        self.trees.empty()
        self._record.fill(figures)
        self._draw()

    def begin(self) -> None:
        self.trees.empty()

    def stepped(self, step: Stepped) -> None:
        if step.watched:
            self._record.add(step.watched.by_drafter, step.watched.drafter_depths)
            self.trees.add(step.watched.trees)

    def end(self, done: Done | None) -> None:
        """Ends the reply; ``done`` has its figures, or is None if it failed."""
        if done:
            self._record.add(done.by_drafter, done.drafter_depths)
        self._record.end()
        self._draw()

    @on(events.Show)
    @on(DraftTreeLog.Drawn)
    def _draw(self) -> None:
        if self.display:
            self.chart.refresh(layout=True)


@dataclass(slots=True)
class DrafterCounts:
    """Acceptance counts of one drafter in a chat, including the current reply."""

    drafted: int = 0  # drafted tokens
    accepted: int = 0  # accepted tokens
    depths: Depths = field(default_factory=list)  # see ``Depths``
    # acceptance rates over time, oldest first; each covers ``SAMPLE`` or more drafted tokens, except a reply's last
    points: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    _before: tuple[int, int, Depths] = (0, 0, [])  # the counts without the current reply
    _told: tuple[int, int] = (0, 0)  # drafted and accepted tokens that ``points`` covers

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def update(self, count: Mapping[str, int], depths: Depths) -> None:
        drafted, accepted, before = self._before
        self.drafted, self.accepted = drafted + count["drafted"], accepted + count.get("accepted", 0)
        self.depths = deeper(before, depths)
        if self.drafted - self._told[0] >= SAMPLE:
            self._mark()

    def end(self) -> None:
        if self.drafted > self._told[0]:
            self._mark()
        self._before = self.drafted, self.accepted, self.depths

    def _mark(self) -> None:
        drafted, accepted = self._told
        self.points.append((self.accepted - accepted) / (self.drafted - drafted))
        self._told = self.drafted, self.accepted


class AcceptanceRecord:
    """Sums the counts over the replies of a chat, including the current one."""

    def __init__(self) -> None:
        self._drafters: dict[str, DrafterCounts] = {}

    def fill(self, figures: Iterable[Figures]) -> None:
        """Replaces all counts by the stored figures of a chat's replies, oldest first.

        Older versions stored the depths only for all drafters together; these are used if a reply had one drafter.
        """
        self._drafters = {}
        for kept in figures:
            drafters = {name: count for name, count in kept.by_drafter.items() if count.get("drafted")}
            alone = {name: kept.by_depth for name in drafters} if len(drafters) == 1 else {}
            self.add(drafters, kept.drafter_depths or alone)
            self.end()

    def add(self, drafters: Mapping[str, Mapping[str, int]], depths: Mapping[str, Depths]) -> None:
        for name, count in drafters.items():
            if count.get("drafted"):
                self._drafters.setdefault(name, DrafterCounts()).update(count, depths.get(name, []))

    def end(self) -> None:
        for counts in self._drafters.values():
            counts.end()

    def drafters(self) -> dict[str, DrafterCounts]:
        return dict(sorted(self._drafters.items(), key=lambda item: -item[1].drafted))


class AcceptanceChart(Widget):
    """Shows as many drafters as fit."""

    def __init__(self, record: AcceptanceRecord) -> None:
        super().__init__()
        self._record = record

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1 + LARGE * len(self._record.drafters()), 2)

    def render(self) -> Content:
        width, height = self.size.width, self.size.height
        drafters = self._record.drafters()
        if not drafters:
            return Content("Nothing was guessed yet.").stylize(FAINT).truncate(width, ellipsis=True)
        large = 1 + LARGE * len(drafters) <= height
        lines = [Content("% right in this chat" if large else "% right: by place, over time").stylize(FAINT)]
        for name, fared in drafters.items():
            lines += _large(name, fared, width) if large else [_small(name, fared, width)]
        return Content("\n").join([line.truncate(width) for line in lines[:height]])


def bars(shares: list[float]) -> str:
    return "".join(BARS[round(min(max(share, 0.0), 1.0) * (len(BARS) - 1))] for share in shares)


def _large(name: str, fared: DrafterCounts, width: int) -> list[Content]:
    shares = _shares(fared)[: max((width - NAME) // COLUMN, 1)]
    drawn = " ".join(3 * bars([share]) for share in shares)
    figures = " ".join(f"{100 * share:3.0f}" for share in shares)
    head = _head(name, fared)
    room = max(width - head.cell_length - 1, 1)
    return [
        head.append(Content(" " + bars(list(fared.points)[-room:])).stylize(_colour(name))),
        Content(f"{'  position':<{NAME}}").stylize(FAINT).append(Content(drawn).stylize(_colour(name))),
        Content(f"{'  % right':<{NAME}}{figures}").stylize(FAINT),
    ]


def _small(name: str, fared: DrafterCounts, width: int) -> Content:
    head = _head(name, fared)
    depths = bars(_shares(fared)[:8])
    room = max(width - head.cell_length - len(depths) - 2, 0)
    over_time = bars(list(fared.points)[-room:]) if room else ""
    return head.append(Content(f" {depths} {over_time}").stylize(_colour(name)))


def _head(name: str, fared: DrafterCounts) -> Content:
    shown = Content(one_line(name)).truncate(NAME - 1, ellipsis=True, pad=True).stylize("bold")
    return shown.append(Content(f" {percent(fared.acceptance):>5}"))


def _shares(fared: DrafterCounts) -> list[float]:
    return [accepted / reached for reached, accepted in fared.depths if reached]


def _colour(name: str) -> str:
    return style_by(name).split()[-1]
