"""The talk and the drafters: who drafts, and work on them beside the chat."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import on
from textual.worker import Worker, WorkerState

from slipstream.app.background import Ended
from slipstream.app.drafters.indexed import is_on
from slipstream.app.engine.protocol import DrafterOffer, Loaded
from slipstream.app.model_arguments import model_name
from slipstream.app.model_choice import head_files
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line
from slipstream.app.tui.jobs import Jobs, failure
from slipstream.app.tui.messages import ModelReady
from slipstream.app.tui.screens.models_talk import ModelsTalk
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # loaded when it is first opened: the chat is on the screen before
    from slipstream.app.tui.screens.drafters import DraftersScreen
    from slipstream.app.tui.screens.drafters_list import Picked
    from slipstream.app.tui.screens.drafters_work import Work


class DraftersTalk(ModelsTalk):
    """A talk whose drafter can be changed, trained, imported and indexed for."""

    _drafters_screen: DraftersScreen | None = None
    _news = ""  # what came of the last work
    _fresh = False  # whether something is here that the loaded model knows nothing of

    @cached_property
    def jobs(self) -> Jobs:
        """What goes on beside the chat."""
        return Jobs()

    def action_drafters(self) -> None:
        """Lists all drafters, to choose one or to see why one does not fit."""
        if self._loaded is None:
            self._hint("The model is not loaded yet.")
            return
        from slipstream.app.tui.screens.drafters import DraftersScreen
        from slipstream.app.tui.screens.drafters_list import Desk

        model = model_name(self._load, Paths.default())
        desk = Desk(model, Path(self._load.model), self.jobs, self._begin_work, lambda: self._news, lambda: self._fresh)
        self._drafters_screen = DraftersScreen(self.offers(self._loaded), self._drafter, self._loaded, desk)
        self.app.push_screen(self._drafters_screen, self._drafter_picked)

    def offers(self, loaded: Loaded) -> list[DrafterOffer]:
        """The drafters of the engine's list, and what the chat began with, which may be a chain of several."""
        own = self._load.drafter
        if any(offer.name == own for offer in loaded.drafters):
            return loaded.drafters
        return [DrafterOffer(own, True, about="what this chat began with"), *loaded.drafters]

    def draft_with(self, name: str) -> None:
        """Takes another drafter for the next reply."""
        if name != self._drafter:
            self._drafter = name
            self.strip.switch(name, writing=self._turn is not None)
            self._hint(f"Drafter from the next reply on: {name}")

    async def _drafter_picked(self, picked: Picked | None) -> None:
        self._drafters_screen = None
        if picked and picked.load:
            await self._after_reply(partial(self._load_again, picked.name))
        elif picked:
            self.draft_with(picked.name)

    async def _load_again(self, drafter: str) -> None:
        """Loads the model anew with the heads and the index that are here now; back to what it had if that fails."""
        paths = Paths.default()
        heads = dict.fromkeys([*map(str, head_files(paths)), *self._load.heads])
        index = str(paths.index) if is_on(paths.index) else None
        self._former = (replace(self._load, drafter=self._drafter), self._model)
        fresh = replace(self._load, heads=[head for head in heads if Path(head).exists()], index=index, drafter=drafter)
        await self._take(fresh, self._model)

    @on(ModelReady)
    def _knows_all(self) -> None:
        self._fresh = False

    # --- work -----------------------------------------------------------------------------------------------------

    def _begin_work(self, work: Work) -> None:
        """Begins work beside the chat; it goes on wherever its owner looks."""
        try:
            self.jobs.check_free()
        except SlipstreamError as error:
            self._tell_error(error)
            return
        self._beside(self._work(work))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Has something go on beside the chat, which a fault in it does not end."""
        self.run_worker(work, group="jobs", exit_on_error=False)

    @on(Worker.StateChanged)
    def _work_failed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR and event.worker.group == "jobs":
            fault = f"slipstream itself failed: {event.worker.error!r}."
            self._tell_error(SlipstreamError(fault, "Please report this."))

    async def _work(self, work: Work) -> None:
        self._news = ""
        try:
            ended, stopped = await self.jobs.run(work.title, work.arguments, self._work_changed)
        except SlipstreamError as error:
            self._tell_error(error)
            return
        self._news = _told(work, ended, stopped)
        self._fresh = self._fresh or not ended.code
        if self._drafters_screen is None:
            self.notify(self._news, timeout=8, severity="information", markup=False)
        else:
            self._drafters_screen.look()
        self._work_changed()

    def _work_changed(self) -> None:
        if self._drafters_screen and self._drafters_screen.is_running:
            self._drafters_screen.show_work()


def _told(work: Work, ended: Ended, stopped: bool) -> str:
    """What came of it, in words."""
    if not ended.code:
        said = f": {'; '.join(ended.said)}" if ended.said else ""
        return one_line(f"{work.title} is done{said}. r in the list of drafters loads the model again, with it.")
    if stopped:
        return f"{work.title} was cancelled. {work.cancelled}"
    error = failure(ended)
    return one_line(f"{work.title} failed: {error.title} {error.hint}")
