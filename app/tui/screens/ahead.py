"""The talk and what is being typed: the engine reads it before it is sent."""

from __future__ import annotations

from functools import partial
from typing import Final

from textual import on
from textual.timer import Timer

from slipstream.app.engine.requests import PAUSE
from slipstream.app.tui.messages import ModelReady
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.app.tui.widgets.prompt import Prompt

AT_ONCE: Final = 100
"""Characters that come in one piece only by a paste, which is read without a pause; so are several lines."""


class AheadTalk(TalkScreen):
    """A talk whose prompt is read while it is typed, so that the reply begins with the last words already read."""

    _ahead_timer: Timer | None = None
    _ahead_text = ""  # what was typed when it changed last

    @on(Prompt.Changed)
    def _text_changed(self) -> None:
        text, before = self.prompt.message, self._ahead_text
        self._ahead_text = text
        pasted = len(text) - len(before) > AT_ONCE or text.count("\n") - before.count("\n") > 1
        self._read_ahead(0 if pasted else PAUSE)

    @on(ModelReady)
    def _can_read_ahead(self) -> None:
        self._read_ahead()

    async def _show_chat(self, at: int | None = None) -> None:
        """Shows the conversation; it is read by the time that its owner answers."""
        await super()._show_chat(at)
        self._read_ahead()

    async def _ended(self) -> None:
        await super()._ended()
        self._read_ahead()

    def _read_ahead(self, pause: float = PAUSE) -> None:
        """Has the chat and what is typed read after a pause, in place of what was to be read before."""
        if self._ahead_timer:
            self._ahead_timer.stop()
        self._ahead_timer = self.set_timer(pause, self._ask_ahead) if pause else None
        if not pause:
            self._ask_ahead()

    def _ask_ahead(self) -> None:
        if self._loaded and not self._turn and not self._room.busy:
            self._room.prepare(
                partial(
                    self._conversation.ahead,
                    self._conversation.chat,
                    self.prompt.message,
                    self._loaded,
                    self._drafter,
                    self._editing,
                )
            )
