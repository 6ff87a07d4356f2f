"""Opens the drafters screen, and runs work on drafters in the background."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.app.library.load_request import model_name
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, sentence
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.jobs import Ended, Jobs, failure
from slipstream.models.errors import SlipstreamError, UsageError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.tui.drafters.screen import BackgroundCommand, DrafterChoice, DraftersScreen


class DrafterWork:
    """Switches drafters, trains and imports heads, and indexes text."""

    def __init__(self, page: ChatPage, model: ChatModel, replying: Replying, jobs: Jobs) -> None:
        self._page, self._model, self._replying, self._jobs = page, model, replying, jobs
        self._screen: DraftersScreen | None = None
        self.news = ""  # outcome of the last work
        self.fresh = False  # whether there are heads or an index newer than the loaded model

    def open(self) -> None:
        loaded, load = self._model.loaded, self._model.load
        if self._model.unavailable:
            self._page.hint(sentence(f"{self._model.unavailable}."))
            return
        if loaded is None:
            self._page.hint(self._model.not_loaded)
            return
        from slipstream.app.tui.drafters.screen import DraftersContext, DraftersScreen

        name = model_name(load, Paths.default())
        plain, file = self._page.status.speed.plain_tok_per_s, Path(load.model)
        context = DraftersContext(name, file, plain, self._jobs, self.begin, lambda: self.news, lambda: self.fresh)
        self._screen = DraftersScreen(self._model.offers(), self._model.drafter, loaded, context)
        self._page.screen.app.push_screen(self._screen, self._picked)

    async def _picked(self, picked: DrafterChoice | None) -> None:
        self._screen = None
        if picked and picked.load:
            await self._replying.after(partial(self._model.load_again, picked.name))
        elif picked:
            self._model.draft_with(picked.name, self._replying.writing)
            if picked.race:
                await self._page.screen.run_action("command('race')")

    def use(self, name: str) -> None:
        """Sets the drafter of the next reply; without a name, opens the list."""
        if not name or self._model.loaded is None:
            self.open()
            return
        offer = next((offer for offer in self._model.offers() if offer.name == name.casefold()), None)
        if offer is None or not offer.usable:
            if offer is None:
                raise UsageError(f"no drafter called “{one_line(name)}”.", "Ctrl-D lists all.")
            raise UsageError(
                f"{offer.name} cannot guess for this model: {one_line(offer.why_not)}.", "Ctrl-D lists all."
            )
        self._model.draft_with(offer.name, self._replying.writing)

    def use_next(self) -> None:
        self._model.next_drafter(self._replying.writing)

    # --- work -----------------------------------------------------------------------------------------------------

    def begin(self, work: BackgroundCommand) -> None:
        """Starts work in the background, which continues while other screens are shown."""
        with self._page.errors_told():
            self._jobs.check_free()
            run_beside(self._page, self._run(work))

    async def _run(self, work: BackgroundCommand) -> None:
        self.news = ""
        try:
            ended, stopped = await self._jobs.run(work.title, work.arguments)
        except SlipstreamError as error:
            self._page.tell_error(error)
            return
        self.news = _told(work, ended, stopped)
        self.fresh = self.fresh or not ended.code
        if self._screen is None:
            self._page.screen.notify(self.news, timeout=8, severity="information", markup=False)
        else:
            self._screen.look()
        self._jobs.changed()

    def show(self) -> None:
        """Updates the drafters screen, if it is open."""
        if self._screen and self._screen.is_running:
            self._screen.show_work()


def run_beside(page: ChatPage, work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine in the background; an exception in it does not end the chat."""
    page.screen.run_worker(work, group="jobs", exit_on_error=False)


def _told(work: BackgroundCommand, ended: Ended, stopped: bool) -> str:
    if not ended.code:
        said = f": {'; '.join(ended.said)}" if ended.said else ""
        return one_line(f"{work.title} is done{said}. r in the list of drafters loads the model again, with it.")
    if stopped:
        return f"{work.title} was cancelled. {work.cancelled}"
    error = failure(ended)
    return one_line(f"{work.title} failed: {error.title} {error.hint}")
