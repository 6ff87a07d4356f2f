"""Prefills the prompt while it is typed, so that only its last words are left to prefill when it is sent."""

from __future__ import annotations

from functools import partial
from typing import Final

from textual.timer import Timer

from slipstream.app.protocol.requests import PAUSE
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.chat.selection import Editing
from slipstream.app.tui.engine_service import EngineService

AT_ONCE: Final = 100  # a longer insertion, or one of several lines, counts as a paste and is prefilled at once


class TypingPrefill:
    """Requests a prefill after a pause in typing."""

    def __init__(
        self, page: ChatPage, engine: EngineService, model: ChatModel, editing: Editing, replying: Replying
    ) -> None:
        self._page, self._engine, self._model, self._editing, self._replying = page, engine, model, editing, replying
        self._timer: Timer | None = None
        self._text = ""  # text at the last change

    def text_changed(self) -> None:
        text, before = self._page.prompt.message, self._text
        self._text = text
        pasted = len(text) - len(before) > AT_ONCE or text.count("\n") - before.count("\n") > 1
        self.read(0 if pasted else PAUSE)

    def read(self, pause: float = PAUSE) -> None:
        """Schedules a prefill of the chat and the typed text; replaces a scheduled one."""
        if self._timer:
            self._timer.stop()
        self._timer = self._page.screen.set_timer(pause, self.read_now) if pause else None
        if not pause:
            self.read_now()

    def read_now(self) -> None:
        """Requests the prefill, if the engine is idle."""
        loaded, conversation = self._model.loaded, self._page.conversation
        if loaded and not self._replying.writing and not self._engine.busy:
            text, drafter, beside = self._page.prompt.message, self._model.drafter, self._editing.message
            self._engine.prepare(partial(conversation.ahead, conversation.chat, text, loaded, drafter, beside))
