"""Work in the background: on drafters, a benchmark, a race; the last two use the memory of the chat's model."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.app.bench import RACE, UNFINISHED
from slipstream.app.library.load_request import drafting_arguments, model_name
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, sentence
from slipstream.app.protocol.requests import AUTO, PLAIN, Message
from slipstream.app.tui.chat.model import ActiveModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import ReplyWriter
from slipstream.app.tui.engine_service import EngineService
from slipstream.app.tui.jobs import JobEnd, Jobs, failure
from slipstream.app.tui.parts.notice import run_in_thread
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.bench.figures import RunningBench
    from slipstream.app.bench.results import StoredResult
    from slipstream.app.tui.bench.form import BenchPlan
    from slipstream.app.tui.bench.screen import BenchScreen
    from slipstream.app.tui.drafters.screen import BackgroundCommand, DrafterChoice, DraftersScreen
    from slipstream.app.tui.race import RaceScreen

BENCHMARK: Final = "benchmark running · F8: progress"
RACE_RUNS: Final = "race running"
RACE_ENDS: Final = "ending the race"
_LONGEST: Final = 4000  # characters of a question that the small context of a race holds


class DrafterWork:
    """Opens the drafters screen, trains and imports heads, and indexes text."""

    def __init__(self, page: ChatPage, model: ActiveModel, replies: ReplyWriter, jobs: Jobs) -> None:
        self._page, self._model, self._replies, self._jobs = page, model, replies, jobs
        self._screen: DraftersScreen | None = None
        self.news = ""  # outcome of the last work
        self.fresh = False  # whether there are heads or an index newer than the loaded model

    def use(self, name: str = "") -> None:
        if name and self._model.loaded:
            self._model.use_drafter(name)
        else:
            self._open()

    def _open(self) -> None:
        page, model = self._page, self._model
        if model.unavailable or model.loaded is None:
            page.hint(sentence(f"{model.unavailable}.") if model.unavailable else model.not_loaded)
            return
        from slipstream.app.tui.drafters.screen import DraftersContext, DraftersScreen

        context = DraftersContext(
            model=model_name(model.load, Paths.default()),
            file=Path(model.load.model),
            plain_tok_per_s=page.status.speed.plain_tok_per_s,
            jobs=self._jobs,
            begin=lambda work: run_beside(page, self._run(work)),
            news=lambda: self.news,
            fresh=lambda: self.fresh,
        )
        self._screen = DraftersScreen(model.offers(), model.drafter, model.loaded, context)
        page.screen.app.push_screen(self._screen, self._picked)

    async def _picked(self, picked: DrafterChoice | None) -> None:
        self._screen = None
        if picked and picked.load:
            await self._replies.after(partial(self._model.load_again, picked.name))
        elif picked and picked.race:
            await self._page.screen.run_action(f"command('race', '', {picked.name!r})")
        elif picked:
            self._model.draft_with(picked.name)

    async def _run(self, work: BackgroundCommand) -> None:
        try:
            self._jobs.check_free()
            self.news = ""
            ended = await self._jobs.run(work.title, work.arguments)
        except SlipstreamError as error:
            self._page.tell_error(error)
            return
        self.news = _end_of_work(work, ended)
        self.fresh = self.fresh or not ended.code
        if self._screen is None:
            self._page.screen.notify(self.news, timeout=8, severity="information", markup=False)
        else:
            self._screen.look()
        self._jobs.changed()

    def show(self) -> None:
        if self._screen and self._screen.is_running:
            self._screen.show_work()


class Benchmark:
    """Benchmarks the model. It is unloaded meanwhile, and sent prompts wait."""

    def __init__(
        self, page: ChatPage, engine: EngineService, model: ActiveModel, replies: ReplyWriter, jobs: Jobs
    ) -> None:
        self._page, self._engine, self._model, self._replies, self._jobs = page, engine, model, replies, jobs
        self._screen: BenchScreen | None = None
        self._plan: BenchPlan | None = None  # the last plan
        self._measuring: RunningBench | None = None
        self.news = ""  # outcome of the last benchmark

    def keep_cut_short(self) -> None:
        folder = Paths.default().benches

        def find() -> list[StoredResult]:
            if not any(folder.glob(f"{UNFINISHED}*")):
                return []
            from slipstream.app.bench.results import recover  # slow imports, seldom needed

            return recover(folder)

        def found(taken: list[StoredResult]) -> None:
            if taken:
                self._page.hint("A benchmark was cut short; F8 shows what it had measured.")

        run_in_thread(self._page.screen, find, found, self._page.tell_error)

    def open(self) -> None:
        from slipstream.app.tui.bench.form import BenchPlan
        from slipstream.app.tui.bench.screen import BenchContext, BenchScreen

        known, now = self._model.known, self._page.status.speed.plain_tok_per_s
        serving = tuple(offer.name for offer in self._model.offers() if offer.usable and offer.name != PLAIN)
        last = self._plan or BenchPlan()
        context = BenchContext(
            model=self._model.name,
            drafters=serving,
            plain_tok_per_s=now or (known.plain_tok_per_s if known else 0.0),
            load_seconds=self._model.load_seconds,
            jobs=self._jobs,
            begin=self.begin,
            measuring=lambda: self._measuring,
            news=lambda: self.news,
            last=replace(last, drafters=tuple(name for name in last.drafters if name in serving) or serving),
        )
        self._screen = BenchScreen(context)
        self._page.screen.app.push_screen(self._screen, self._closed)

    def _closed(self, _: None) -> None:
        self._screen = None

    def show(self) -> None:
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
        if busy := self._replies.busy_with:
            self._page.hint(f"{busy}; begin the benchmark when it is done.")
            return False
        from slipstream.app.bench.figures import RunningBench

        self._measuring = RunningBench()
        self._model.lend(BENCHMARK)
        release, run = self._engine.release, self._run
        run_in_thread(self._page.screen, release, lambda _: run_beside(self._page, run(plan)), self._not_begun)
        return True

    def _not_begun(self, error: SlipstreamError) -> None:
        self._measuring = None
        self._model.take_back()
        self._page.tell_error(error)

    async def _run(self, plan: BenchPlan) -> None:
        from slipstream.app.bench.results import keep, place_for, unfinished

        self.news = ""
        paths = Paths.default()
        try:
            with unfinished(paths.benches) as written:
                model, more = model_name(self._model.load, paths), drafting_arguments(self._model.load, paths)
                ended = await self._jobs.run("Benchmark", plan.arguments(model, more, written), 0, self._take)
                kept = keep(written, place_for(paths.benches, datetime.now()))
            self.news = _end_of_benchmark(ended, kept)
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
        from slipstream.app.bench.estimate import about
        from slipstream.app.bench.figures import decoded
        from slipstream.app.engine.process.frames import ProtocolError

        with suppress(ValueError, LookupError, ProtocolError):
            update = decoded(json.loads(line))
            if self._measuring and self._jobs.job:
                self._measuring.take(update)
                left = "" if update.left is None else f", {about(update.left)} left"
                self._jobs.job.progress = f"{100 * update.share:.0f} %{left}"
                self._jobs.changed()


class Races:
    """Runs races. The chat's model is unloaded meanwhile, and sent prompts wait."""

    def __init__(
        self, page: ChatPage, engine: EngineService, model: ActiveModel, replies: ReplyWriter, jobs: Jobs
    ) -> None:
        self._page, self._engine, self._model, self._replies, self._jobs = page, engine, model, replies, jobs
        self._screen: RaceScreen | None = None
        self._messages: list[Message] = []
        self._drafter = AUTO

    def open(self, prompt: str = "", drafter: str = "") -> None:
        """Opens the screen and starts a race on a prompt; without one on the chat's last question, else on a story.

        The drafter that races is the chat's unless one is named; the chat keeps its own.
        """
        self._jobs.check_free()
        if self._replies.busy_with or self._model.loaded is None:
            busy = self._replies.busy_with or "The model is being loaded"
            raise SlipstreamError(f"{busy}.", "Race when it is done.")
        from slipstream.app.tui.race import RaceScreen

        asked = [Message("user", prompt)] if prompt else self._page.conversation.last_asked(self._model.loaded)
        self._messages = asked if asked and len(asked[-1].content) <= _LONGEST else []
        self._drafter = drafter or (self._model.drafter if self._model.drafter != PLAIN else AUTO)
        self._screen = RaceScreen(self._begin, self._stop, self._page.larger)
        self._page.screen.app.push_screen(self._screen, self._closed)
        self._model.lend(RACE_RUNS)
        run_in_thread(self._page.screen, self._engine.release, lambda _: self._begin(), self._failed)

    def _stop(self) -> None:
        """Ends the race. The process may need seconds for that; the prompt's border says so at once."""
        self._model.lend(RACE_ENDS)
        self._jobs.stop()

    def _closed(self, _: None) -> None:
        self._screen = None
        if self._jobs.job is None and self._model.unavailable in (RACE_RUNS, RACE_ENDS):
            self._model.take_back()

    def _failed(self, error: SlipstreamError) -> None:
        if self._screen:
            self._screen.ended(one_line(f"{error.title} {error.hint}"))

    def _begin(self) -> None:
        if self._screen is None:
            self._closed(None)
        else:
            run_beside(self._page, self._run())

    async def _run(self) -> None:
        from slipstream.app.bench.race_events import RaceRequest, decoded
        from slipstream.app.engine.process.frames import ProtocolError

        request = RaceRequest(self._model.load, self._drafter, self._messages)

        def show(line: str) -> None:
            with suppress(ValueError, LookupError, ProtocolError):  # not a race event
                if self._screen:
                    self._screen.picture.take(decoded(json.loads(line)))

        try:
            arguments = [RACE, json.dumps(asdict(request))]
            ended = await self._jobs.run("Race", arguments, nice=0, on_output=show)
            words = "" if ended.stopped or not ended.code else f"{failure(ended).title} {failure(ended).hint}"
        except SlipstreamError as error:
            words = f"{error.title} {error.hint}"
        if self._screen:
            self._screen.ended(one_line(words))
        else:
            self._closed(None)


def run_beside(page: ChatPage, work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine in the background; an exception in it does not end the chat."""
    page.screen.run_worker(work, group="jobs", exit_on_error=False)


def _end_of_work(work: BackgroundCommand, ended: JobEnd) -> str:
    if not ended.code:
        said = f": {'; '.join(ended.said)}" if ended.said else ""
        return one_line(f"{work.title} is done{said}. r in the list of drafters loads the model again, with it.")
    if ended.stopped:
        return f"{work.title} was cancelled. {work.cancelled}"
    error = failure(ended)
    return one_line(f"{work.title} failed: {error.title} {error.hint}")


def _end_of_benchmark(ended: JobEnd, kept: StoredResult | None) -> str:
    if ended.stopped:
        return "Cancelled; what was measured until then is kept." if kept else "Cancelled before anything was measured."
    if ended.code or kept is None:
        error = failure(ended)
        return one_line(f"The benchmark failed: {error.title} {error.hint}")
    if kept.report is None:
        return f"The benchmark's result cannot be shown: {kept.problem}."
    return "The benchmark is done; Enter opens it."
