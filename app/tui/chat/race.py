"""Runs races: one reply with a drafter, one without. The chat's model is unloaded meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from slipstream.app.bench import RACE
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.tui.chat.drafter_work import run_beside
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.engine_service import EngineService
from slipstream.app.tui.jobs import Jobs, failure
from slipstream.app.tui.parts.run_in_thread import run_in_thread
from slipstream.models.errors import SlipstreamError

if TYPE_CHECKING:  # slow imports: the chat is drawn first
    from slipstream.app.tui.race import RaceScreen

WAITS: Final = "race running"
ENDS: Final = "ending the race"


class Races:
    """Runs races. The chat's model is unloaded meanwhile, and sent prompts wait."""

    def __init__(self, page: ChatPage, engine: EngineService, model: ChatModel, replying: Replying, jobs: Jobs) -> None:
        self._page, self._engine, self._model, self._replying, self._jobs = page, engine, model, replying, jobs
        self._screen: RaceScreen | None = None
        self._prompt = ""

    def open(self, prompt: str = "") -> None:
        """Opens the screen and starts a race; without a prompt, it asks for a story.

        Raises:
            SlipstreamError: If a job or a reply is running, or no model is loaded.
        """
        self._jobs.check_free()
        if self._replying.writing or self._engine.busy or self._model.loaded is None:
            what = "A reply is being written" if self._replying.writing else "The model is being loaded"
            raise SlipstreamError(f"{what}.", "Race when it is done.")
        from slipstream.app.tui.race import RaceScreen

        self._prompt = prompt
        self._screen = RaceScreen(self._begin, self._stop)
        self._page.screen.app.push_screen(self._screen, self._closed)
        self._model.lend(WAITS)
        run_in_thread(self._page.screen, self._engine.release, lambda _: self._begin(), self._failed)

    def _stop(self) -> None:
        """Ends the race. The process may need seconds for that; the prompt's border says so at once."""
        self._model.lend(ENDS)
        self._jobs.stop()

    def _closed(self, _: None) -> None:
        """Reloads the chat's model, unless a race is still running."""
        self._screen = None
        if self._jobs.job is None and self._model.unavailable in (WAITS, ENDS):
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

        drafter = self._model.drafter if self._model.drafter != PLAIN else AUTO
        request = RaceRequest(self._model.load, drafter, self._prompt)

        def show(line: str) -> None:
            with suppress(ValueError, LookupError, ProtocolError):  # not a race event
                if self._screen:
                    self._screen.picture.take(decoded(json.loads(line)))

        try:
            arguments = [RACE, json.dumps(asdict(request))]
            ended, stopped = await self._jobs.run("Race", arguments, nice=0, on_line=show)
            words = "" if stopped or not ended.code else f"{failure(ended).title} {failure(ended).hint}"
        except SlipstreamError as error:
            words = f"{error.title} {error.hint}"
        if self._screen:
            self._screen.ended(one_line(words))
        else:
            self._closed(None)
