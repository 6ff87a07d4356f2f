"""The names of the model manager's tabs, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

TAB_GAP = 3


class TabNames(Widget):
    """Tabs with their number keys and counts; a click chooses one."""

    @dataclass
    class Chosen(Message):
        """The user clicked a tab."""

        at: int

    current: reactive[int] = reactive(0)
    """The tab that is shown."""
    counts: reactive[tuple[int, ...]] = reactive(())
    """Number of entries of each tab; 0 is not shown."""

    def __init__(self, names: Sequence[str], short: Sequence[str]) -> None:
        super().__init__()
        self._names, self._short = names, short

    def _labels(self) -> list[str]:
        """The longest labels that fit: with counts, without, or shortened."""
        counts = [*self.counts, *[0] * len(self._names)]
        full = [f"{name} ({count})" if count else name for name, count in zip(self._names, counts, strict=False)]
        room = self.size.width - 2
        for names in (full, self._names, self._short):
            labels = [f"{at} {name}" for at, name in enumerate(names, start=1)]
            if sum(map(len, labels)) + TAB_GAP * (len(labels) - 1) <= room:
                break
        return labels

    def render(self) -> Content:
        parts = []
        for at, label in enumerate(self._labels()):
            here = at == self.current
            key, name = label.split(" ", 1)
            shown = Content(name).stylize("bold $primary underline" if here else "$foreground 60%")
            parts.append(Content.styled(f"{key} ", "$primary").append(shown))
        return Content(" ").append(Content(" " * TAB_GAP).join(parts))

    def on_click(self, event: events.Click) -> None:
        left = 1
        for at, label in enumerate(self._labels()):
            if left - 1 <= event.x <= left + len(label):
                self.post_message(self.Chosen(at))
                return
            left += len(label) + TAB_GAP
