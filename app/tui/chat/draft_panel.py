"""The panel of the last draft trees and of each drafter's acceptance rate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
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

from slipstream.app.chats.records import Figures
from slipstream.app.protocol.events import Done, DraftTree, Stepped
from slipstream.app.tui.chat.acceptance import AcceptanceChart, AcceptanceRecord
from slipstream.app.tui.chat.draft_tree import drawn, drawn_plain

MOST = 100  # steps kept for scrolling back
EMPTY = Content("Guesses appear here during the next reply.").stylize("$foreground 55%")
DRAW_EVERY = 0.1  # seconds between two redraws, so that the reply has priority


class DraftTreeLog(ScrollView):
    """A log of steps that follows the newest while scrolled to the end. Draws only visible lines."""

    class Drawn(Message):
        """The log was redrawn; the chart is redrawn at the same rate."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[DraftTree] = deque(maxlen=MOST)  # the steps that are drawn, oldest first
        self._runs: deque[tuple[int, int]] = deque(
            maxlen=MOST
        )  # first step and number of steps of each entry: plain steps are joined
        self._new: deque[tuple[DraftTree, int, int]] = deque(maxlen=MOST)  # added since the last redraw
        self._lines: list[Strip] = []
        self._heights: deque[int] = deque(maxlen=MOST)  # lines of each tree
        self._width = 0  # width of the drawn lines
        self._follows = True  # whether the view is scrolled to the end
        self._drawn_at = 0.0
        self._timer: Timer | None = None

    def add(self, trees: Sequence[DraftTree]) -> None:
        """Queues steps for the next redraw."""
        self._new.extend((tree, tree.step, 1) for tree in trees)
        if self._new and self._timer is None:
            wait = self._drawn_at + DRAW_EVERY - time.monotonic()
            self._timer = self.set_timer(max(wait, 0.001), self._draw)

    def empty(self) -> None:
        for kept in (self.kept, self._runs, self._new, self._lines, self._heights):
            kept.clear()
        self._measure()

    def on_resize(self) -> None:
        """Redraws all steps at a new width; keeps following the newest."""
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
        if not tree.texts and self.kept and not self.kept[-1].texts:
            del self._lines[len(self._lines) - self._heights.pop() :]
            self.kept.pop()
            before, others = self._runs.pop()
            first, count = before, others + count
        gone = self._heights[0] if len(self.kept) == MOST else 0
        del self._lines[:gone]
        width = self._width
        content = drawn(tree, width) if tree.texts else drawn_plain(first, tree.step, count, width)
        strips = Visual.to_strips(self, content, width, None, self.visual_style)
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


BESIDE = 96
"""Screen width from which the panel is next to the transcript instead of below."""
CHART = 64  # width from which the chart is next to the trees


class Split(Container):
    """Lays out the transcript and the panel side by side, or stacked on a narrow screen."""

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= BESIDE, "beside")
        self.set_class(event.size.width < CHART, "narrow")


class DraftPanel(Container):
    """The draft trees and the acceptance chart; hidden until F4."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Back", show=False)]

    class Left(Message):
        """The user goes back to the prompt."""

    def __init__(self) -> None:
        super().__init__()
        self._record = AcceptanceRecord()
        self.trees = DraftTreeLog()  # the last steps
        self.chart = AcceptanceChart(self._record)  # acceptance of each drafter in this chat
        self.display = False
        self.border_title = Content("Guesses (% likely): ✓ ━ right, ✗ wrong")

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
        """Adds a step of the reply, if it carries drafts."""
        if step.watched:
            self._record.add(step.watched.by_drafter, step.watched.drafter_depths)
            self.trees.add(step.watched.trees)

    @on(DraftTreeLog.Drawn)
    def _draw_chart(self) -> None:
        self._draw()

    def end(self, done: Done | None) -> None:
        """Ends the reply.

        Args:
            done: Its figures; None if it failed.
        """
        if done:
            self._record.add(done.by_drafter, done.drafter_depths)
        self._record.end()
        self._draw()

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def on_show(self) -> None:
        self._draw()

    def _draw(self) -> None:
        if self.display:
            self.chart.draw()
