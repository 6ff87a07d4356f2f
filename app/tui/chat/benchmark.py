"""Benchmarks the chat's model, which is unloaded meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slipstream.app.bench.unfinished import recover, unfinished
from slipstream.app.library.load_request import drafting_arguments, model_name
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.app.tui.chat.drafter_work import run_beside
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.engine_service import EngineService
from slipstream.app.tui.jobs import Ended, Jobs, failure
from slipstream.app.tui.parts.run_in_thread import run_in_thread
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.bench.kept import Kept
    from slipstream.app.bench.progress import Measuring
    from slipstream.app.tui.bench.form import BenchPlan
    from slipstream.app.tui.bench.screen import BenchScreen

WAITS: Final = "benchmark running · F8: progress"


class Benchmark:
    """Benchmarks the model. It is unloaded meanwhile, and sent prompts wait."""

    def __init__(self, page: ChatPage, engine: EngineService, model: ChatModel, replying: Replying, jobs: Jobs) -> None:
        self._page, self._engine, self._model, self._replying, self._jobs = page, engine, model, replying, jobs
        self._screen: BenchScreen | None = None
        self._plan: BenchPlan | None = None  # the last plan
        self._measuring: Measuring | None = None
        self.news = ""  # outcome of the last benchmark

    def keep_cut_short(self) -> None:
        """Stores the results of a benchmark that was cut short when the program ended."""
        run_in_thread(self._page.screen, lambda: recover(Paths.default().benches), self._kept, self._page.tell_error)

    def _kept(self, taken: list[Kept]) -> None:
        if taken:
            self._page.hint("A benchmark was cut short; F8 shows what it had measured.")

    def open(self) -> None:
        from slipstream.app.tui.bench.form import BenchPlan
        from slipstream.app.tui.bench.screen import BenchContext, BenchScreen

        known, now = self._model.known, self._page.status.speed.plain_tok_per_s
        serving = tuple(offer.name for offer in self._model.offers() if offer.usable and offer.name != "none")
        last = self._plan or BenchPlan()
        kept = tuple(name for name in last.drafters if name in serving)
        context = BenchContext(
            self._model.name,
            serving,
            now or (known.plain_tok_per_s if known else 0.0),
            self._jobs,
            self.begin,
            lambda: self._measuring,
            lambda: self.news,
            replace(last, drafters=kept or serving),
        )
        self._screen = BenchScreen(context)
        self._page.screen.app.push_screen(self._screen, self._closed)

    def _closed(self, _: None) -> None:
        self._screen = None

    def show(self) -> None:
        """Updates the benchmark screen, if it is open."""
        if self._screen and self._screen.is_running:
            self._screen.show_work()

    def begin(self, plan: BenchPlan) -> bool:
        """Starts a benchmark, unless a reply, a load or another job is running; returns whether it started."""
        self._plan = plan
        try:
            self._jobs.check_free()
        except SlipstreamError as error:
            self._page.tell_error(error)
            return False
        if self._replying.writing or self._engine.busy:
            what = "A reply is being written" if self._replying.writing else "The model is being loaded"
            self._page.hint(f"{what}; begin the benchmark when it is done.")
            return False
        from slipstream.app.bench.progress import Measuring

        self._measuring = Measuring()
        self._model.lend(WAITS)
        release, run = self._engine.release, self._run
        run_in_thread(self._page.screen, release, lambda _: run_beside(self._page, run(plan)), self._not_begun)
        return True

    def _not_begun(self, error: SlipstreamError) -> None:
        self._measuring = None
        self._model.take_back()
        self._page.tell_error(error)

    async def _run(self, plan: BenchPlan) -> None:
        """Runs the benchmark, stores its results, and reloads the model."""
        from slipstream.app.bench.kept import keep, place_for

        self.news = ""
        paths = Paths.default()
        try:
            with unfinished(paths.benches) as written:
                model, more = model_name(self._model.load, paths), drafting_arguments(self._model.load, paths)
                ended, stopped = await self._jobs.run("Benchmark", plan.arguments(model, more, written), 0, self._take)
                kept = keep(written, place_for(paths.benches, datetime.now()))
            self.news = _told(ended, stopped, kept)
        except SlipstreamError as error:
            self.news = one_line(f"The benchmark failed: {error.title} {error.hint}")
        finally:
            self._measuring = None
            self._model.take_back()
        if self._screen is None:
            self._page.screen.notify(f"{self.news} F8 lists the results.", timeout=8, markup=False)
        else:
            self._screen.look()
        self._jobs.changed()

    def _take(self, line: str) -> None:
        """Parses a line of the benchmark's output; ignores lines that are not updates."""
        from slipstream.app.bench.estimate import about
        from slipstream.app.bench.progress import decoded

        with suppress(ValueError, LookupError, TypeError):
            update = decoded(json.loads(line))
            if self._measuring and self._jobs.job:
                self._measuring.take(update)
                left = "" if update.left is None else f", {about(update.left)} left"
                self._jobs.job.progress = f"{100 * update.share:.0f} %{left}"
                self._jobs.changed()


def _told(ended: Ended, stopped: bool, kept: Kept | None) -> str:
    if stopped:
        return "Cancelled; what was measured until then is kept." if kept else "Cancelled before anything was measured."
    if ended.code or kept is None:
        error = failure(ended)
        return one_line(f"The benchmark failed: {error.title} {error.hint}")
    if kept.report is None:
        return f"The benchmark's result cannot be shown: {kept.problem}."
    return "The benchmark is done; Enter opens it."
