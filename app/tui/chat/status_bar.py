"""The strip: how fast the reply comes, and how well the drafter does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from textual.content import Content, Span
from textual.widget import Widget

from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol import Prefilling, Speed, Stepped
from slipstream.app.tui.chat.authorship import legend
from slipstream.app.tui.parts.format import UNKNOWN, duration, percent, rate, sparkline, times

SAMPLE_MS = 150.0
"""Milliseconds of steps that make one bar of the sparkline."""
MARGIN = 1
NOBODY = "none"
"""The engine's word for a step without a draft."""
NAME = 9
"""Columns for the name of who works, so that the figures beside it stay where they are."""
WIDE = 60
"""Columns from which there is room for it."""
FEWEST, MOST = 8, 30
"""Bars of the speed over time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure and what it is."""

    value: str
    label: str
    style: str = "bold"


class Strip(Widget):
    """Live figures of the reply, or of the last one."""

    def __init__(self, drafter: str, exact: bool = True) -> None:
        """Begins without figures.

        Args:
            drafter: Who drafts the next reply.
            exact: Whether the text is the model's own, whatever drafts.
        """
        super().__init__()
        self.speed = Speed()
        self._drafter = drafter
        self.next_drafter = drafter
        self._working = ""  # who drafted the last step, of the several that a chain has
        self._exact = exact
        self._promise = ""
        self.first_token = UNKNOWN
        self._first_label = "first token"
        self._rates: deque[float] = deque(maxlen=40)
        self._tokens = 0
        self._ms = 0.0
        self._legend = False
        self._seen: dict[str, None] = {}  # drafters whose text is on the screen
        self._why = ""  # the autopilot chose so

    def begin(self, drafter: str) -> None:
        """A reply begins."""
        self.speed = Speed()
        self._drafter = self.next_drafter = drafter
        self._working = ""
        self.first_token, self._first_label = "…", "first token"
        self._rates.clear()
        self._tokens, self._ms = 0, 0.0
        self._explain("")
        self.refresh()

    def prefilling(self, event: Prefilling) -> None:
        """The prompt is being read."""
        self.first_token, self._first_label = percent(event.done / max(event.total, 1)), "reading"
        self.refresh()

    def step(self, stepped: Stepped) -> None:
        """Takes the figures of a step."""
        self.speed = stepped.speed
        if stepped.ttft_ms:
            self.first_token, self._first_label = duration(stepped.ttft_ms), "first token"
        if stepped.drafter not in (NOBODY, self._drafter):
            self._working = stepped.drafter
        if stepped.why:
            self._explain(one_line(stepped.why))
        for piece in stepped.pieces:
            if piece.source:
                self._seen[piece.source] = None
        self._tokens += len(stepped.tokens)
        self._ms += stepped.ms
        if self._ms >= SAMPLE_MS:
            self._rates.append(1000 * self._tokens / self._ms)
            self._tokens, self._ms = 0, 0.0
        self.refresh()

    def end(self, speed: Speed) -> None:
        """A reply is over."""
        self.speed, self._working = speed, ""
        self.idle()

    def idle(self) -> None:
        """Nothing comes any more: where no token came, none is waited for."""
        if self._first_label == "reading" or self.first_token == "…":
            self.first_token, self._first_label = UNKNOWN, "first token"
        self.refresh()

    def clear(self) -> None:
        """Another chat is shown: these figures are not its own."""
        self.begin(self.next_drafter)
        self._seen.clear()
        self.idle()

    def switch(self, drafter: str, writing: bool) -> None:
        """Shows who drafts the next reply; while one is being written, beside who drafts that."""
        self.next_drafter = drafter
        if not writing:
            self._drafter = drafter
        self.refresh()

    def promise(self, promise: str) -> None:
        """Shows what the engine promises."""
        self._promise = one_line(promise)
        self.refresh()

    def explain(self, on: bool) -> None:
        """Shows or hides the legend of the colours."""
        self._legend = on
        self.set_class(on, "explaining")
        self.refresh(layout=True)

    def _explain(self, why: str) -> None:
        if bool(why) != bool(self._why):
            self.set_class(bool(why), "reasoned")
            self.refresh(layout=True)
        self._why = why

    def render(self) -> Content:
        """Draws one line where the screen is low, else two, then the autopilot's reason and the legend."""
        width = max(self.size.width - 2 * MARGIN, 1)
        height = self.size.height - self._legend
        lines = [self._line(width)] if height <= 1 else self._table(width)
        if self._why and height > len(lines):
            lines.append(Content(self._why).stylize("$foreground 55%"))
        if self._legend:
            lines.append(legend(width, self._seen))
        pad = Content(" " * MARGIN)
        return Content("\n").join([pad.append(line.truncate(width)) for line in lines])

    def _cells(self) -> list[Cell]:
        """All cells, the ones to keep longest first."""
        speed = self.speed
        drafter = Cell(one_line(self._drafter), "drafter")
        if self._working and self.size.width >= WIDE:
            drafter = replace(drafter, label=f"now: {one_line(self._working):<{NAME}}")
        if self.next_drafter != self._drafter:
            drafter = Cell(f"{one_line(self._drafter)}→{one_line(self.next_drafter)}", "next reply", "bold $accent")
        good = speed.speedup is not None and speed.speedup >= 1.05
        per_step = f"{speed.tokens_per_step:.2f}" if speed.steps else UNKNOWN
        promise = Cell(self._promise or UNKNOWN, "promise", "")
        return [
            Cell(self._rate(), "tok/s", "bold $primary"),
            *([] if self._exact else [Cell("typical", "changes the text", "bold $warning")]),
            Cell(percent(speed.acceptance), "acceptance"),
            Cell(times(speed.speedup), "vs plain", "bold $success" if good else "bold"),
            drafter,
            Cell(per_step, "tokens/step"),
            Cell(self.first_token, self._first_label),
            *([promise] if self._exact else []),
        ]

    def _rate(self) -> str:
        return rate(self.speed.tok_per_s) if self.speed.tokens else UNKNOWN

    def _table(self, width: int) -> list[Content]:
        """Values above their labels, as many as fit, the rest of the width between them.

        The speed has its course below it: its unit stands beside it.
        """
        cells = self._cells()
        cells[0] = replace(cells[0], value=f"{self._rate()} tok/s", label=" " * FEWEST)
        widths = [max(len(cell.value), len(cell.label)) for cell in cells]
        while len(cells) > 1 and sum(widths) + 2 * (len(widths) - 1) > width:
            cells.pop()
            widths.pop()
        spare = width - sum(widths) - 2 * (len(widths) - 1)
        bars = min(max(widths[0] + spare - 3 * len(cells), widths[0]), MOST)
        cells[0] = replace(cells[0], label=sparkline(list(self._rates), bars))
        spare -= bars - widths[0]
        widths[0] = bars
        gap = 2 + min(max(spare, 0) // max(len(cells) - 1, 1), 6)
        above, below = Content(""), Content("")
        for cell, cell_width in zip(cells, widths, strict=True):
            space = Content(" " * gap)
            above = above.append(Content(cell.value.ljust(cell_width)).stylize(cell.style)).append(space)
            label = Content(cell.label.ljust(cell_width))
            below = below.append(label.stylize("$primary" if cell is cells[0] else "$foreground 55%")).append(space)
        return [above, below]

    def _line(self, width: int) -> Content:
        """Values with short labels in one line."""
        words: list[tuple[str, str]] = []
        used = -3
        units = {
            "tok/s": " tok/s",
            "changes the text": ": changes the text",
            "acceptance": " acc",
            "vs plain": " plain",
            "tokens/step": "/step",
        }
        cells = self._cells()
        if sum(len(cell.value + units.get(cell.label, "")) + 3 for cell in cells[:4]) - 3 > width:
            units = {"tok/s": " tok/s", "changes the text": ": changes the text"}
        for cell in cells:
            text = cell.value + units.get(cell.label, "")
            if used + len(text) + 3 > width:
                break
            used += len(text) + 3
            words.append((text, cell.style))
        if self._rates and width - used - 3 >= FEWEST:
            words.append((sparkline(list(self._rates), min(width - used - 3, MOST)), "$primary"))
        line, spans = "", []
        for text, style in words:
            line += " · " if line else ""
            if style:
                spans.append(Span(len(line), len(line) + len(text), style))
            line += text
        return Content(line, spans)
