"""One result of the benchmark, with all its figures.

Results of benchmarks: as rows, as bars, and as a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from slipstream.app.bench.figures import BestFixed, DrafterFigures, DrafterReport
from slipstream.app.bench.kept import Kept
from slipstream.app.bench.plots import Style, chart, verdict
from slipstream.app.bench.report import STOPPED
from slipstream.app.platform.safe_text import clean, one_line
from slipstream.app.protocol import PLAIN
from slipstream.app.speed import times
from slipstream.app.tui.parts.browser import TableView, below, heading, text
from slipstream.app.tui.parts.format import percent, rate
from slipstream.app.tui.parts.key_bar import KeyBar
from slipstream.app.tui.parts.table import Column, table

_COLOURS: Final = {"\x1b[32m": "$success", "\x1b[31m": "$error", "\x1b[90m": "$foreground 45%"}
_END: Final = "\x1b[0m"
ROOMY: Final = 56
"""Columns from which there is room for intervals."""
_NAME: Final = 12  # of a drafter's name
_VALUE: Final = 8  # of its speed-up, with the space around it
_FEW: Final = 5  # prompts from which on an interval deserves trust


class BenchView(TableView):
    """Kept results, the newest first."""

    nothing = "No benchmark was run from here yet. n begins one."
    waiting = "Looking for earlier results …"

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.results: list[Kept] = []
        self.width = 40
        """Columns that bars may take."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns."""
        return (Column("when"), Column("model", 2), Column("text", 1), Column("auto", 0, right=True), Column("best", 1))

    def __len__(self) -> int:
        """All results."""
        return len(self.results)

    def key(self, at: int) -> str:
        """The file's name."""
        return self.results[at].path.name

    def cells(self, at: int) -> list[Content]:
        """When, on what, and what came of it."""
        kept = self.results[at]
        when = Content(f"{kept.when:%d %b %H:%M}")
        if kept.report is None:
            return [when.stylize("$foreground 45%"), *[Content("")] * 2, Content("✗").stylize("$error"), Content("")]
        over = kept.report.best[-1] if kept.report.best else None
        texts = " ".join(one_line(name) for name in kept.report.prompts)
        auto = times(over.auto.value) if over and over.auto else ""
        best = f"{one_line(over.drafter)} {times(over.speedup.value)}" if over else ""
        return [when, text(kept.report.model), Content(texts), Content(auto), Content(best)]

    def details(self, at: int) -> list[Content]:
        """The bars, or why there are none."""
        kept = self.results[at]
        title = heading(f"{kept.when:%d %B %Y, %H:%M}", kept.processor)
        if kept.report is None:
            return [title, Content(f"This result cannot be shown: {kept.problem}. x deletes it.")]
        return [title, bars(kept.report, self.width) if self.width >= ROOMY else short_bars(kept.report, self.width)]


def bars(report: DrafterReport, width: int) -> Content:
    """The speed-ups with their intervals; those that are surely a gain or a loss in colour."""
    lines = []
    for line in chart(report.rows, Style(width, color=True)).strip("\n").split("\n"):
        code = next((code for code in _COLOURS if line.startswith(code)), "")
        content = Content(clean(line.removeprefix(code).removesuffix(_END)))
        lines.append(content.stylize(_COLOURS[code]) if code else content)
    return Content("\n").join(lines)


def short_bars(report: DrafterReport, width: int) -> Content:
    """The speed-ups without their intervals, where there is no room for them; plain decoding's is the line at 1x."""
    rows = [row for row in report.rows if row.drafter != PLAIN]
    names = min(_NAME, max((len(row.drafter) for row in rows), default=0))
    room = max(width - names - _VALUE, 6)
    most = max([1.0, *(row.speedup.value for row in rows if row.speedup)])
    lines = []
    for (kind, temperature), group in groupby(rows, lambda row: (row.kind, row.temperature)):
        lines.append(Content(f"{one_line(kind)}, T {temperature:g}").stylize("$foreground 60%"))
        lines += [_short_bar(row, names, room / most) for row in group]
    return Content("\n").join(lines)


def _short_bar(row: DrafterFigures, names: int, scale: float) -> Content:
    """One bar; ``scale`` is the columns that stand for 1x."""
    name = f"{one_line(row.drafter)[:names]:<{names}}"
    if row.speedup is None:
        return Content(f"{name} too short").stylize("$foreground 45%")
    colours = {"gain": "$success", "loss": "$error", "even": "$foreground 70%", "idle": "$foreground 45%"}
    length, plain = round(row.speedup.value * scale), round(scale)
    line = "━" * length + " " * (plain - length) + "│" if length < plain else "━" * length
    label = f"{name} {times(row.speedup.value):>5} "
    return Content(label).append(Content(line).stylize(colours[verdict(row)]))


def figures(report: DrafterReport, width: int) -> Content:
    """All rows as a table, as wide as there is room."""
    columns = (
        Column("drafter"),
        Column("text", 0),
        Column("T", 3, right=True),
        Column("tok/s", 1, right=True),
        Column("speed-up [95 %]", 0, right=True),
        Column("tokens per step", 4, right=True),
        Column("right", 2, right=True),
        Column("first token", 5, right=True),
        Column("same text", 6, right=True),
    )
    return Content("\n").join(table(columns, [_row(row) for row in report.rows], width))


def remarks(report: DrafterReport) -> Content:
    """The best choice of each kind of text, and what has to be said of the figures."""
    idle = list(dict.fromkeys(one_line(row.drafter) for row in report.rows if row.drafter != PLAIN and row.idle))
    few = [name for name, count in report.prompts.items() if count < _FEW]
    prompts = ", ".join(f"{one_line(name)} {count}" for name, count in report.prompts.items())
    promise = one_line(report.promise)
    return below(
        Content(STOPPED if report.stopped else "").stylize("$warning"),
        *(_best(row) for row in report.best),
        Content(f"Same text as plain decoding's: {report.equal_texts} of {report.texts} (promised: {promise})."),
        Content(f"Prompts: {prompts}; at most {report.reply} tokens a reply."),
        Content(f"Fewer than {_FEW} prompts a set: too few for reliable intervals." if few else "").stylize("$warning"),
        Content(f"Guessed nothing, so its speed-up is noise: {', '.join(idle)}." if idle else ""),
        *(Content(f"Left out: {one_line(name)}, {one_line(why)}.") for name, why in report.unusable.items()),
    )


def _row(row: DrafterFigures) -> list[Content]:
    return [
        text(row.drafter, "bold"),
        text(row.kind),
        Content(f"{row.temperature:g}"),
        Content(rate(row.tok_per_s)),
        Content("" if row.drafter == PLAIN else row.speedup_text),
        Content(f"{row.tokens_per_step:.2f}"),
        Content(percent(row.acceptance)),
        Content(f"{row.first_token_ms:.0f} ms"),
        Content(f"{row.equal_texts}/{row.texts}"),
    ]


def _best(row: BestFixed) -> Content:
    """One kind of text: the fastest drafter, and the autopilot beside it."""
    auto = f"; auto {row.auto.text()}" if row.auto else ""
    words = f"Best on {one_line(row.kind)}, T {row.temperature:g}: {one_line(row.drafter)} {row.speedup.text()}{auto}."
    return Content(words)


MARGIN: Final = 6
"""Columns beside the text: padding and the scroll bar."""
WIDEST: Final = 140


class BenchResult(Screen[None]):
    """Bars, then the table, then what has to be said of them."""

    DEFAULT_CSS = """
    BenchResult VerticalScroll { padding: 1 2 0 2; scrollbar-size-vertical: 1; }
    BenchResult VerticalScroll Static { height: auto; margin: 0 0 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back", key_display="Esc")]

    def __init__(self, kept: Kept, report: DrafterReport) -> None:
        """Keeps what to show."""
        super().__init__()
        self._kept, self._report = kept, report

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        facts = (f"{self._kept.when:%d %B %Y, %H:%M}", one_line(self._report.model), one_line(self._kept.processor))
        yield Static(Content(" · ".join(facts)), classes="machine")
        with VerticalScroll():
            yield Static(id="bars")
            yield Static(id="figures")
            yield Static(remarks(self._report))
        yield KeyBar()

    def on_mount(self) -> None:
        """The arrow keys scroll."""
        self.query_one(VerticalScroll).focus()

    def on_resize(self) -> None:
        """Writes it for the width there is."""
        width = max(min(self.size.width, WIDEST) - MARGIN, 20)
        self.query_one("#bars", Static).update(bars(self._report, width))
        self.query_one("#figures", Static).update(figures(self._report, width))
