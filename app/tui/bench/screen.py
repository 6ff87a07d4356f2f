"""The benchmark screen: runs benchmarks of the chat's model and lists stored results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from slipstream.app.bench.figures import RunningBench
from slipstream.app.bench.results import StoredResult, delete, kept_results
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import PLAIN
from slipstream.app.tui.bench.form import BenchForm, BenchPlan
from slipstream.app.tui.bench.result import BenchResult, BenchView
from slipstream.app.tui.jobs import Jobs, WorkNote
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.parts.browser import WIDE, Browser, BrowsingScreen
from slipstream.app.tui.parts.dialogs import confirm
from slipstream.app.tui.parts.run_in_thread import run_in_thread

BESIDE: Final = 40  # columns of the bars if the details are next to the list


@dataclass(frozen=True, slots=True)
class BenchContext:
    """What the screen needs from the chat.

    Attributes:
        model: The model's name.
        drafters: Its usable drafters; empty while it is not loaded.
        plain_tok_per_s: Its plain speed.
        jobs: The background jobs.
        begin: Starts a benchmark, which continues while the screen is closed; returns whether it started.
        measuring: The running benchmark, or None.
        news: Outcome of the last benchmark; empty if there was none.
        last: The last plan.
    """

    model: str
    drafters: tuple[str, ...]
    plain_tok_per_s: float
    jobs: Jobs
    begin: Callable[[BenchPlan], bool]
    measuring: Callable[[], RunningBench | None]
    news: Callable[[], str]
    last: BenchPlan


class BenchScreen(BrowsingScreen[None]):
    """Lists stored results, and starts benchmarks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New"),
        Binding("enter", "open", "Open"),
        Binding("x,delete", "delete", "Delete", key_display="x"),
        Binding("c", "cancel", "Cancel"),
        Binding("escape,f8", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, context: BenchContext) -> None:
        self.view = BenchView()
        super().__init__(self.view)
        self._work = WorkNote(self.browser, f"Benchmark of {context.model} on this machine", context.jobs, context.news)
        self._chat = context
        self._page: BenchResult | None = None  # the page that shows the running benchmark

    def compose(self) -> ComposeResult:
        yield self._work.title
        yield self.browser
        yield KeyBar()

    def on_mount(self) -> None:
        self.browser.rows.focus()
        self.show_work()
        self.watch(self.browser.rows, "highlighted", self.refresh_bindings, init=False)
        self.look()

    def show_work(self) -> None:
        self.view.measuring = self._chat.measuring()
        self._work.draw()
        if self._page and self.view.measuring:
            self._page.show(self.view.measuring)

    def on_resize(self) -> None:
        wide = self.size.width >= WIDE
        self.view.width = BESIDE if wide else max(self.size.width - 5, 20)
        self.browser.describe()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        kept, working = self._kept(), self._chat.jobs.job is not None
        live = kept is None and self.browser.at is not None
        offered = {
            "new": not working,
            "open": live or (kept is not None and kept.report is not None),
            "delete": kept is not None,
            "cancel": working,
        }
        return offered.get(action, True)

    def look(self) -> None:
        run_in_thread(self, lambda: kept_results(Paths.default().benches), self._known, self.fail)

    def _known(self, results: list[StoredResult]) -> None:
        fresh = results and results[0].path not in [kept.path for kept in self.view.results]
        self.view.results, self.view.ready = results, True
        self.show_work()
        if self._page and self.view.measuring is None:  # the benchmark has ended
            if fresh and results[0].report:
                self._page.show(results[0])
            else:
                self._page.dismiss()

    def _kept(self) -> StoredResult | None:
        at = self.browser.at
        return None if at is None else self.view.kept(at)

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

        self.app.push_screen(BenchForm(context.drafters, context.last, self._speeds()), answered)

    def _speeds(self) -> dict[str, float]:
        reports = [kept.report for kept in self.view.results if kept.report]
        rows = next((report.overall for report in reports if report.model == self._chat.model), [])
        return {PLAIN: self._chat.plain_tok_per_s} | {row.drafter: row.tok_per_s for row in rows}

    @on(Browser.Chosen)
    def action_open(self) -> None:
        kept, measuring = self._kept(), self.view.measuring
        if kept and kept.report:
            self._open(BenchResult(kept))
        elif kept is None and measuring:
            self._page = BenchResult(measuring, self._chat.model, self.action_cancel)
            self._open(self._page)

    def action_delete(self) -> None:
        kept = self._kept()
        if kept is None:
            return
        erase = partial(run_in_thread, self, lambda: delete(kept), lambda _: self.look(), self.fail)
        question = f"Delete the result of {kept.when:%d %B %Y, %H:%M}?"
        confirm(self.app, question, "Its figures are gone for good.", "deletes", erase)

    def action_cancel(self) -> None:
        self._chat.jobs.stop()
        self.show_work()
