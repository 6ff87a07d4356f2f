"""The talk and the benchmark: the chat's model leaves the memory to it, and comes back afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from textual import on

from slipstream.app.background import Ended
from slipstream.app.bench.unfinished import take_left, unfinished
from slipstream.app.engine.protocol import Loaded
from slipstream.app.model_arguments import drafting_arguments, model_name
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line, sentence
from slipstream.app.tui.behind import behind
from slipstream.app.tui.jobs import failure
from slipstream.app.tui.messages import ModelReady
from slipstream.app.tui.screens.drafters_talk import DraftersTalk
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # loaded when it is first opened: the chat is on the screen before
    from slipstream.app.bench.kept import Kept
    from slipstream.app.tui.screens.bench import BenchScreen
    from slipstream.app.tui.screens.bench_plan import BenchPlan

WAITS = "the benchmark has the model · F8 shows how far it is"


class BenchTalk(DraftersTalk):
    """A talk whose model can be measured. Meanwhile no model is loaded here, and what is sent waits."""

    _bench_screen: BenchScreen | None = None
    _benching = False
    _bench_news = ""  # what came of the last benchmark
    _bench_plan: BenchPlan | None = None
    _known: Loaded | None = None  # the model of the chat, while the benchmark has it too

    @on(ModelReady)
    def _know(self, message: ModelReady) -> None:
        if self._known is None:
            behind(self, lambda: take_left(Paths.default().benches), self._left_taken, self._tell_error)
        self._known = message.loaded

    def _left_taken(self, taken: list[Kept]) -> None:
        if taken:
            self._hint("A benchmark was cut short; F8 shows what it had measured.")

    def action_drafters(self) -> None:
        """Lists all drafters, where the model is here."""
        if self._benching:
            self._hint(sentence(f"{WAITS}."))
        else:
            super().action_drafters()

    def action_bench(self) -> None:
        """Opens the benchmark."""
        from slipstream.app.tui.screens.bench import BenchDesk, BenchScreen
        from slipstream.app.tui.screens.bench_plan import BenchPlan

        known = self._known
        drafters = tuple(offer.name for offer in self.offers(known) if offer.usable) if known else ()
        serving = tuple(name for name in drafters if name != "none")
        last = self._bench_plan or BenchPlan()
        kept = tuple(name for name in last.drafters if name in serving)
        desk = BenchDesk(
            self._model,
            serving,
            known.plain_tok_per_s if known else 0.0,
            self.jobs,
            self._begin_bench,
            lambda: self._bench_news,
            replace(last, drafters=kept or serving),
        )
        self._bench_screen = BenchScreen(desk)
        self.app.push_screen(self._bench_screen, self._bench_closed)

    def _bench_closed(self, _: None) -> None:
        self._bench_screen = None

    # --- the model ------------------------------------------------------------------------------------------------

    def _start_loading(self) -> None:
        """Loads the model, but not beside a benchmark: it follows when that has ended."""
        if self._benching:
            self.prompt.border_subtitle = WAITS
        else:
            super()._start_loading()

    def _load_for(self, then: Callable[[], Awaitable[None]]) -> None:
        super()._load_for(then)
        if self._benching:
            self.prompt.border_subtitle = f"will be sent afterwards: {WAITS}"

    # --- the benchmark --------------------------------------------------------------------------------------------

    def _begin_bench(self, plan: BenchPlan) -> None:
        """Begins a benchmark, unless something else needs the machine."""
        self._bench_plan = plan
        try:
            self.jobs.check_free()
        except SlipstreamError as error:
            self._tell_error(error)
            return
        if self._turn or self._room.busy:
            what = "A reply is being written" if self._turn else "The model is being loaded"
            self._hint(f"{what}; begin the benchmark when it is done.")
            return
        self._benching = True
        self._loaded = None
        self.top_bar.loaded = None
        self.strip.idle()
        self.prompt.border_subtitle = WAITS
        behind(self, self._room.release, lambda _: self._beside(self._bench(plan)), self._not_begun)

    def _not_begun(self, error: SlipstreamError) -> None:
        self._benching = False
        self._start_loading()
        self._tell_error(error)

    async def _bench(self, plan: BenchPlan) -> None:
        """Measures, keeps what was found, and gives the chat its model back."""
        from slipstream.app.bench.kept import keep, place_for

        self._bench_news = ""
        paths = Paths.default()
        try:
            with unfinished(paths.benches) as written:
                model, more = model_name(self._load, paths), drafting_arguments(self._load, paths)
                arguments = plan.arguments(model, more, written)
                ended, stopped = await self.jobs.run("Benchmark", arguments, self._work_changed, nice=0)
                kept = keep(written, place_for(paths.benches, datetime.now()))
            self._bench_news = _told(ended, stopped, kept)
        except SlipstreamError as error:
            self._bench_news = one_line(f"The benchmark failed: {error.title} {error.hint}")
        finally:
            self._benching = False
        self._start_loading()
        if self._bench_screen is None:
            self.notify(f"{self._bench_news} F8 lists the results.", timeout=8, markup=False)
        else:
            self._bench_screen.look()
        self._work_changed()

    def _work_changed(self) -> None:
        super()._work_changed()
        if self._bench_screen and self._bench_screen.is_running:
            self._bench_screen.show_work()


def _told(ended: Ended, stopped: bool, kept: Kept | None) -> str:
    """What came of it, in words."""
    if stopped:
        return "Cancelled; what was measured until then is kept." if kept else "Cancelled before anything was measured."
    if ended.code or kept is None:
        error = failure(ended)
        return one_line(f"The benchmark failed: {error.title} {error.hint}")
    if kept.report is None:
        return f"The benchmark's result cannot be shown: {kept.problem}."
    return "The benchmark is done; Enter opens it."
