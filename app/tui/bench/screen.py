"""The benchmark screen: runs benchmarks of the chat's model and lists stored results."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content

from slipstream.app.bench.figures import RunningBench
from slipstream.app.bench.results import StoredResult, delete, kept_results
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import PLAIN
from slipstream.app.tui.bench.form import BenchForm, BenchPlan
from slipstream.app.tui.bench.result import BenchResult, BenchView
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.parts.browser import WIDE, Browser, BrowsingScreen
from slipstream.app.tui.parts.dialogs import confirm
from slipstream.app.tui.parts.notice import run_in_thread

BESIDE: Final = 40  # columns of the bars if the details are next to the list


@dataclass(frozen=True, slots=True)
class BenchContext:
    """What the screen needs from the chat."""

    model: str  # its name
    drafters: tuple[str, ...]  # its usable drafters; empty while it is not loaded
    plain_tok_per_s: float
    load_seconds: float  # how long its last load took
    jobs: Jobs
    begin: Callable[[BenchPlan], bool]  # starts a benchmark, which outlives the screen; returns whether it started
    measuring: Callable[[], RunningBench | None]
    news: Callable[[], str]  # outcome of the last benchmark; empty if there was none
    last: BenchPlan


class BenchScreen(BrowsingScreen[None]):
    """Lists stored results, and starts benchmarks."""

    terms = (("rough", "the machine was busy or unsteady, or there were few prompts"),)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New"),
        Binding("enter", "open", "Open"),
        Binding("x,delete", "delete", "Delete", key_display="x"),
        Binding("c", "cancel", "Cancel"),
        Binding("escape,f8", "leave", "Back", key_display="Esc", priority=True),
    ]

    def __init__(self, context: BenchContext) -> None:
        self.view = BenchView()
        super().__init__(self.view)
        self.title_line.update(Content(one_line(f"Benchmark of {context.model} on this machine")))
        self.results: list[StoredResult] = []
        self._chat = context
        self._page: BenchResult | None = None  # the page that shows the running benchmark

    def on_mount(self) -> None:
        self.show_work()
        self.look()

    def show_work(self) -> None:
        measuring = self._chat.measuring()
        self.view.rows = [*([measuring] if measuring else []), *self.results]
        self.note(str(self._chat.jobs.job or self._chat.news()))
        if self._page and measuring:
            self._page.show(measuring)

    def on_resize(self) -> None:
        wide = self.size.width >= WIDE
        self.view.width = BESIDE if wide else max(self.size.width - 5, 20)
        self.browser.describe()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        row, working = self.browser.row, self._chat.jobs.job is not None
        offered = {
            "new": not working,
            "open": isinstance(row, RunningBench) or (row is not None and row.report is not None),
            "delete": isinstance(row, StoredResult),
            "cancel": working,
        }
        return offered.get(action, True)

    def look(self) -> None:
        run_in_thread(self, lambda: kept_results(Paths.default().benches), self._known, self.fail)

    def _known(self, results: list[StoredResult]) -> None:
        fresh = results and results[0].path not in [kept.path for kept in self.results]
        self.results, self.view.ready = results, True
        self.show_work()
        if self._page and self._chat.measuring() is None:  # the benchmark has ended
            if fresh and results[0].report:
                self._page.show(results[0])
            else:
                self._page.dismiss()

    def _open(self, page: BenchResult) -> None:
        def closed(_: None) -> None:
            self._page = None

        self.app.push_screen(page, closed)

    def action_new(self) -> None:
        context = self._chat
        if not context.drafters:
            self.say("The model is not loaded yet.")
            return

        def answered(plan: BenchPlan | None) -> None:
            if plan and context.begin(plan):
                self.show_work()
                self.browser.rows.highlighted = 0  # the running benchmark
                self._page = BenchResult(context.measuring() or RunningBench(), context.model, self.action_cancel)
                self._open(self._page)

        self.app.push_screen(BenchForm(context.drafters, context.last, self._speeds(), context.load_seconds), answered)

    def _speeds(self) -> dict[str, float]:
        reports = [kept.report for kept in self.results if kept.report]
        rows = next((report.overall for report in reports if report.model == self._chat.model), [])
        return {PLAIN: self._chat.plain_tok_per_s} | {row.drafter: row.tok_per_s for row in rows}

    @on(Browser.Chosen)
    def action_open(self) -> None:
        row: StoredResult | RunningBench | None = self.browser.row
        if isinstance(row, RunningBench):
            self._page = BenchResult(row, self._chat.model, self.action_cancel)
            self._open(self._page)
        elif row and row.report:
            self._open(BenchResult(row))

    def action_delete(self) -> None:
        kept: StoredResult = self.browser.row
        erase = partial(run_in_thread, self, lambda: delete(kept), lambda _: self.look(), self.fail)
        question = f"Delete the result of {kept.when:%d %B %Y, %H:%M}?"
        confirm(self.app, question, "Its figures are gone for good.", "deletes", erase)

    def action_cancel(self) -> None:
        self._chat.jobs.stop()
        self.show_work()
