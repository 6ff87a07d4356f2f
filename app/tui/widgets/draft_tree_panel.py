"""Speculation in sight: the last steps' draft trees, and how often each drafter is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.message import Message

from slipstream.app.chats.records import Figures
from slipstream.app.engine.protocol import Done, Stepped
from slipstream.app.tui.widgets.acceptance import AcceptanceChart
from slipstream.app.tui.widgets.acceptance_record import AcceptanceRecord
from slipstream.app.tui.widgets.draft_tree_log import DraftTreeLog

BESIDE = 96
"""Columns of the chat from which the panel stands beside what was said; on a narrower screen it stands below."""
CHART = 64
"""Columns from which there is room for the chart beside the trees."""


class Split(Container):
    """What was said and the panel: side by side where there is room, else one below the other."""

    def on_resize(self, event: events.Resize) -> None:
        """Takes the place that there is."""
        self.set_class(event.size.width >= BESIDE, "beside")
        self.set_class(event.size.width < CHART, "narrow")


class DraftPanel(Container):
    """Trees and a chart; hidden until somebody wants to see them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Back", show=False)]

    class Left(Message):
        """The user goes back to the prompt."""

    def __init__(self) -> None:
        """Begins hidden."""
        super().__init__()
        self._record = AcceptanceRecord()
        self.trees = DraftTreeLog()
        """The last steps."""
        self.chart = AcceptanceChart(self._record)
        """How each drafter fared in this chat."""
        self.display = False
        self.border_title = Content("Drafts: probability in %, ━ accepted")

    def compose(self) -> ComposeResult:
        """The chart stands above the trees, or beside them."""
        yield self.chart
        yield self.trees

    def fill(self, figures: Iterable[Figures]) -> None:
        """Shows another chat.

        Args:
            figures: Those of its replies, oldest first.
        """
        self.trees.empty()
        self._record.fill(figures)
        self._draw()

    def begin(self) -> None:
        """A reply begins: the trees are its own from now on."""
        self.trees.empty()

    def hear(self, steps: Sequence[Stepped]) -> None:
        """Takes steps of the reply; of those that carry no draft nothing is shown."""
        watched = [step.watched for step in steps if step.watched]
        if watched:
            self._record.hear(watched[-1].by_drafter, watched[-1].drafter_depths)
            self.trees.add([tree for each in watched for tree in each.trees])
            self._draw()

    def end(self, done: Done | None) -> None:
        """The reply is over.

        Args:
            done: Its figures, or None where it ended without.
        """
        if done:
            self._record.hear(done.by_drafter, done.drafter_depths)
        self._record.end()
        self._draw()

    def action_leave(self) -> None:
        """Gives the focus back."""
        self.post_message(self.Left())

    def on_show(self) -> None:
        """Draws what came while nobody looked."""
        self._draw()

    def _draw(self) -> None:
        if self.display:
            self.chart.soon()
