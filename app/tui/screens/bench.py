"""The benchmark: run it on the model of the chat, see it as bars and figures, keep what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.binding import Binding, BindingType

from slipstream.app.bench.kept import Kept, delete, kept_results
from slipstream.app.paths import Paths
from slipstream.app.tui.behind import behind
from slipstream.app.tui.jobs import Jobs
from slipstream.app.tui.screens.bench_form import BenchForm
from slipstream.app.tui.screens.bench_plan import BenchPlan
from slipstream.app.tui.screens.bench_result import BenchResult
from slipstream.app.tui.screens.dialogs import ConfirmScreen
from slipstream.app.tui.screens.working import WorkingScreen
from slipstream.app.tui.widgets.bench_view import BenchView
from slipstream.app.tui.widgets.models_browser import WIDE, Browser

BESIDE: Final = 40
"""Columns of the details where they stand beside the list."""


@dataclass(frozen=True, slots=True)
class BenchDesk:
    """What the screen needs of the chat.

    Attributes:
        model: The model's name.
        drafters: Those that serve it; none while it is not loaded.
        plain_tok_per_s: Its plain speed.
        jobs: What goes on beside the chat.
        begin: Begins a benchmark; it goes on while the screen is closed.
        news: What came of the last one; empty if there was none.
        last: What was measured last.
    """

    model: str
    drafters: tuple[str, ...]
    plain_tok_per_s: float
    jobs: Jobs
    begin: Callable[[BenchPlan], None]
    news: Callable[[], str]
    last: BenchPlan


class BenchScreen(WorkingScreen[None]):
    """Lists earlier results, and begins a benchmark."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "new", "New"),
        Binding("enter", "open", "Open"),
        Binding("x,delete", "delete", "Delete", key_display="x"),
        Binding("c", "cancel", "Cancel"),
        Binding("escape,f8", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, desk: BenchDesk) -> None:
        """Keeps what it needs of the chat."""
        self._view = BenchView()
        super().__init__(self._view, f"Benchmark of {desk.model} on this machine", desk.jobs, desk.news)
        self._desk = desk

    def on_mount(self) -> None:
        """Looks for earlier results."""
        self.look()

    def on_resize(self) -> None:
        """Fits the bars."""
        wide = self.size.width >= WIDE
        self._view.width = BESIDE if wide else max(self.size.width - 5, 20)
        self.browser.describe()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers what can be done now."""
        kept, working = self._kept(), self._desk.jobs.job is not None
        offered = {
            "new": not working,
            "open": kept is not None and kept.report is not None,
            "delete": kept is not None,
            "cancel": working,
        }
        return offered.get(action, True)

    # --- what is known --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Lists the results anew."""
        behind(self, lambda: kept_results(Paths.default().benches), self._known, self._fail)

    def _known(self, results: list[Kept]) -> None:
        self._view.results, self._view.ready = results, True
        self.show_work()

    def _kept(self) -> Kept | None:
        at = self.browser.at
        return None if at is None else self._view.results[at]

    # --- what can be done -----------------------------------------------------------------------------------------

    def action_new(self) -> None:
        """Asks what to measure, and begins."""
        desk = self._desk
        if not desk.drafters:
            self._say("The model is not loaded yet.")
            return

        def answered(plan: BenchPlan | None) -> None:
            if plan:
                desk.begin(plan)

        self.app.push_screen(BenchForm(desk.drafters, desk.last, desk.plain_tok_per_s), answered)

    @on(Browser.Chosen)
    def action_open(self) -> None:
        """Shows the result under the bar with all its figures."""
        kept = self._kept()
        if kept and kept.report:
            self.app.push_screen(BenchResult(kept, kept.report))

    def action_delete(self) -> None:
        """Asks, then deletes the result under the bar."""
        kept = self._kept()
        if kept is None:
            return

        def answered(yes: bool | None) -> None:
            if yes:
                behind(self, lambda: delete(kept), lambda _: self.look(), self._fail)

        question = f"Delete the result of {kept.when:%d %B %Y, %H:%M}?"
        self.app.push_screen(ConfirmScreen(question, "Its figures are gone for good.", "deletes"), answered)

    def action_cancel(self) -> None:
        """Stops the benchmark; what was measured until then is kept."""
        self._desk.jobs.stop()
        self.show_work()
