"""Shows finished and running benchmarks as rows, bars and tables."""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from slipstream.app.bench.estimate import about
from slipstream.app.bench.figures import ALL_KINDS, DrafterFigures, DrafterReport, Noise, RunningBench
from slipstream.app.bench.intervals import FEW
from slipstream.app.bench.plots import verdict
from slipstream.app.bench.report import RANGE, STOPPED, advice, few_words
from slipstream.app.bench.results import StoredResult
from slipstream.app.library.format import rate
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import times
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.parts.browser import Column, TableView, below, heading, table, text
from slipstream.app.tui.parts.format import STYLES, bar, gain_bar, percent

_NAME: Final = 14  # columns of a drafter's name
_VALUE: Final = 8  # columns of its speed-up, with padding
_TEXT: Final = 20  # columns of its speed-up with the interval
_ROOMY: Final = 70  # width from which the interval is shown
NOW: Final = "now"  # the key of the running benchmark's row
MARGIN: Final = 6  # columns of padding and scroll bar
WIDEST: Final = 120
FIGURES: Final[tuple[Column[DrafterFigures], ...]] = (
    Column("drafter", lambda row: text(row.drafter, "bold")),
    Column("text", lambda row: text(row.kind)),
    Column("T", lambda row: Content(f"{row.temperature:g}"), 3, right=True),
    Column("tok/s", lambda row: Content(rate(row.tok_per_s) if row.drafter == PLAIN else ""), 1, right=True),
    Column("speed-up [95 %]", lambda row: Content("" if row.drafter == PLAIN else row.speedup_text), right=True),
    Column("tokens per step", lambda row: Content(f"{row.tokens_per_step:.2f}"), 4, right=True),
    Column("right", lambda row: Content(percent(row.acceptance)), 2, right=True),
    Column("first token", lambda row: Content(f"{row.first_token_ms:.0f} ms"), 5, right=True),
    Column("same text", lambda row: Content(f"{row.equal_texts}/{row.texts}"), 6, right=True),
)


class BenchView(TableView[StoredResult | RunningBench]):
    """Lists the running benchmark, then stored results, newest first."""

    nothing = "No benchmark was run from here yet. n begins one."
    waiting = "Looking for earlier results …"

    def __init__(self) -> None:
        super().__init__()
        self.columns = (
            Column("when", _when),
            Column("model", lambda kept: text(_model(kept)), 2),
            Column("text", lambda kept: text(_kinds(kept)), 1),
            Column("auto", _auto_gain, right=True),
            Column("best", lambda kept: Content(_best_name(kept)), 1),
        )
        self.width = 40  # width of the bars

    def key(self, kept: StoredResult | RunningBench) -> str:
        return NOW if isinstance(kept, RunningBench) else kept.path.name

    def details(self, kept: StoredResult | RunningBench) -> list[Content]:
        if isinstance(kept, RunningBench):
            return [progress(kept, self.width), live_bars(kept, self.width)]
        title = heading(f"{kept.when:%d %B %Y, %H:%M}", kept.processor)
        if kept.report is None:
            return [title, Content(f"This result cannot be shown: {kept.problem}. x deletes it.")]
        return [title, _advice(kept.report), doubts(kept.report), bars(kept.report.rows, self.width, kept.report.noise)]


def _when(kept: StoredResult | RunningBench) -> Content:
    if isinstance(kept, RunningBench):
        return Content.styled("now", "bold $primary")
    return Content.styled(f"{kept.when:%d %b %H:%M}", "" if kept.report else "$foreground 45%")


def _model(kept: StoredResult | RunningBench) -> str:
    source = kept.update if isinstance(kept, RunningBench) else kept.report
    return source.model if source else ""


def _kinds(kept: StoredResult | RunningBench) -> str:
    if isinstance(kept, RunningBench):
        return kept.update.kind if kept.update else ""
    return " ".join(kept.report.prompts) if kept.report else ""


def _auto_gain(kept: StoredResult | RunningBench) -> Content:
    if isinstance(kept, RunningBench):
        return Content("")
    if kept.report is None:
        return Content.styled("✗", "$error")
    own = next((row for row in kept.report.overall if row.drafter == AUTO), None)
    return Content(times(own.gain.value) if own and own.gain else "")


def _best_name(kept: StoredResult | RunningBench) -> str:
    report = None if isinstance(kept, RunningBench) else kept.report
    if report is None or not report.best:
        return ""
    over = report.best[-1]
    gains = [row.drafter for row in report.overall if verdict(row, report.noise) == "gain"]
    best = f"{one_line(over.drafter)} {times(over.speedup.value)}" if over.drafter in gains else PLAIN
    return f"{best}{', rough' if report.noise.remarks() or _few(report) else ''}"


def progress(measuring: RunningBench, width: int) -> Content:
    update, left = measuring.update, measuring.left
    if update is None:
        return Content("Loading the model and trying each drafter …").stylize("$foreground 60%")
    full, rest = bar(update.share, max(8, min(30, width // 3)))
    time = "" if left is None else f" · {about(left)} left"
    by = "without a drafter" if update.drafter == PLAIN else f"with {one_line(update.drafter)}"
    now = f" · writing {one_line(update.kind)} {by}" if update.drafter else ""
    return Content.assemble((full, "$primary"), (rest, "$foreground 30%"), f"  {percent(update.share)}{time}{now}")


def live_bars(measuring: RunningBench, width: int) -> Content:
    update = measuring.update
    if update is None:
        return Content("")
    rows = measuring.rows
    every = [row for row in rows if row.kind == ALL_KINDS] or rows
    known = {row.drafter for row in every}
    drawn = bars(every, width, update.noise, room_for=update.drafters)
    names = _name_width(update.drafters)
    waits = [
        Content(f"{one_line(name)[:names]:<{names}} {'…' if name == update.drafter else 'waits'}")
        for name in update.drafters
        if name not in known
    ]
    return below(drawn, *(line.stylize(STYLES["idle"]) for line in waits))


def _name_width(names: Iterable[str]) -> int:
    return min(_NAME, max((len(one_line(name)) for name in names), default=0))


def bars(rows: Sequence[DrafterFigures], width: int, noise: Noise, room_for: Sequence[str] = ()) -> Content:
    """The speed-ups over plain decoding, greatest first: all kinds, then each. ``room_for``: more names to fit."""
    rows = [row for row in rows if row.drafter != PLAIN]
    names, text_width = _name_width([*room_for, *(row.drafter for row in rows)]), _TEXT if width >= _ROOMY else _VALUE
    room = max(width - names - text_width - 2, 6)
    most = max([1.2, *(row.gain.value for row in rows if row.gain)])
    groups: dict[tuple[str, float], list[DrafterFigures]] = {}
    for row in sorted(rows, key=lambda row: row.kind != ALL_KINDS):
        groups.setdefault((row.kind, row.temperature), []).append(row)
    several = len({temperature for _, temperature in groups}) > 1
    lines = []
    for (kind, temperature), group in groups.items():
        title = f"{one_line(kind)}{f', temperature {temperature:g}' if several else ''}"
        lines.append(Content(title).stylize("$foreground 60%"))
        group.sort(key=lambda row: -row.gain.value if row.gain else 0.0)
        for row in group:
            found = verdict(row, noise)
            ratio = row.gain
            value = row.speedup_text if text_width == _TEXT or ratio is None else times(ratio.value)
            label = Content(f"{one_line(row.drafter)[:names]:<{names}} ").append(Content(f"{value:<{text_width}} "))
            if ratio is None:
                lines.append(label.stylize(STYLES[found]))
            else:
                lines.append(label.append(gain_bar(ratio.value, most, room, STYLES[found], ratio.high)))
    return Content("\n").join(lines)


def _advice(report: DrafterReport) -> Content:
    return Content(one_line(advice(report.rows, report.noise)) if report.rows else "").stylize("bold")


def _few(report: DrafterReport) -> list[str]:
    return [one_line(name) for name, count in report.prompts.items() if count < FEW]


def doubts(report: DrafterReport) -> Content:
    few = _few(report)
    said = [STOPPED] if report.stopped else []
    said += report.noise.remarks()
    said += [few_words(few)] if few else []
    return Content("\n".join(f"! {line}" for line in said)).stylize("$warning")


def remarks(report: DrafterReport) -> Content:
    prompts = ", ".join(f"{one_line(name)} {count}" for name, count in report.prompts.items())
    promise = {"same text": "identical", "same distribution": "same odds; rounding may choose another word"}
    output = promise.get(report.promise, one_line(report.promise))
    return below(
        Content("A speed-up is against the replies without a drafter right before and after; below 1x is slower."),
        Content(f"Same text as without a drafter: {report.equal_texts} of {report.texts} (output: {output})."),
        Content(f"Prompts: {prompts}; at most {report.reply} tokens a reply."),
        *(Content(f"Left out: {one_line(name)}, {one_line(why)}.") for name, why in report.unusable.items()),
    )


class BenchResult(Screen[None]):
    """Shows bars, table and remarks; updates while the benchmark runs."""

    DEFAULT_CSS = """
    BenchResult VerticalScroll { padding: 1 2; scrollbar-size-vertical: 1; }
    BenchResult VerticalScroll Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "cancel", "Cancel"),
        Binding("escape,enter,q", "dismiss", "Back", key_display="Esc", priority=True),
        Binding("f1", "app.help", "Help"),
    ]

    def __init__(
        self, shown: StoredResult | RunningBench, model: str = "", cancel: Callable[[], None] | None = None
    ) -> None:
        """``model`` is the model's name until the first update has it."""
        super().__init__()
        self._shown, self._model, self._cancel = shown, model, cancel
        self._title, self._page = Static(classes="machine"), Static()

    def compose(self) -> ComposeResult:
        yield self._title
        with VerticalScroll():
            yield self._page
        yield KeyBar()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.set_interval(1.0, self._tick)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return isinstance(self._shown, RunningBench) if action == "cancel" else True

    def action_cancel(self) -> None:
        if self._cancel:
            self._cancel()

    @on(events.Resize)
    def draw(self) -> None:
        width = max(min(self.size.width, WIDEST) - MARGIN, 20)
        shown = self._shown
        title, *parts = self._measuring(shown, width) if isinstance(shown, RunningBench) else _result(shown, width)
        self._title.update(title)
        self._page.update(Content("\n\n").join([part for part in parts if part.plain]))

    def show(self, shown: StoredResult | RunningBench) -> None:
        self._shown = shown
        self.refresh_bindings()
        self.draw()

    def _tick(self) -> None:
        if isinstance(self._shown, RunningBench):
            self.draw()

    def _measuring(self, measuring: RunningBench, width: int) -> list[Content]:
        update = measuring.update
        title = Content(f"Measuring {one_line(update.model if update else self._model)}")
        remarks = [Content.styled(f"! {line}", "$warning") for line in update.noise.remarks()] if update else []
        noisy = below(progress(measuring, width), *remarks, bars_legend(measuring.rows))
        rows = below(*table(FIGURES, measuring.rows, width)) if measuring.rows else Content("")
        note = Content.styled("Esc leaves this page; the benchmark goes on." if update else "", "$foreground 60%")
        return [title, noisy, live_bars(measuring, width), rows, note]


def bars_legend(rows: Sequence[DrafterFigures]) -> Content:
    ranges = any(row.gain and row.gain.low is not None for row in rows)
    return Content.styled(f"{f'{RANGE} ' if ranges else ''}│: the speed without a drafter.", "$foreground 60%")


def _result(kept: StoredResult, width: int) -> list[Content]:
    report = kept.report
    assert report
    title = Content(" · ".join((one_line(report.model), f"{kept.when:%d %B %Y, %H:%M}", one_line(kept.processor))))
    drawn, rows = bars(report.rows, width, report.noise), below(*table(FIGURES, report.rows, width))
    return [title, below(_advice(report), doubts(report), bars_legend(report.rows)), drawn, rows, remarks(report)]
