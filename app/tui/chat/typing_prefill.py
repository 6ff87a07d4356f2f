"""Has the engine read the prompt while it is typed, so that a reply begins with only the last words unread."""

from __future__ import annotations

from functools import partial
from typing import Final

from textual.timer import Timer

from slipstream.app.protocol import PAUSE
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.replying import Replying
from slipstream.app.tui.chat.selection import Editing
from slipstream.app.tui.engine_service import EngineService

AT_ONCE: Final = 100  # a longer insertion counts as a paste and is read without a pause; so do several lines


class TypingPrefill:
    """Waits for a pause in the typing, then asks."""

    def __init__(
        self, page: ChatPage, engine: EngineService, model: ChatModel, editing: Editing, replying: Replying
    ) -> None:
        """Keeps where the text is, and what must be idle for it to be read."""
        self._page, self._engine, self._model, self._editing, self._replying = page, engine, model, editing, replying
        self._timer: Timer | None = None
        self._text = ""  # what was typed when it changed last

    def text_changed(self) -> None:
        """Takes what is typed now."""
        text, before = self._page.prompt.message, self._text
        self._text = text
        pasted = len(text) - len(before) > AT_ONCE or text.count("\n") - before.count("\n") > 1
        self.read(0 if pasted else PAUSE)

    def read(self, pause: float = PAUSE) -> None:
        """Has the chat and what is typed read after a pause, in place of what was to be read before."""
        if self._timer:
            self._timer.stop()
        self._timer = self._page.screen.set_timer(pause, self.read_now) if pause else None
        if not pause:
            self.read_now()

    def read_now(self) -> None:
        """Has it read, if the engine is idle."""
        loaded, conversation = self._model.loaded, self._page.conversation
        if loaded and not self._replying.writing and not self._engine.busy:
            text, drafter, beside = self._page.prompt.message, self._model.drafter, self._editing.message
            self._engine.prepare(partial(conversation.ahead, conversation.chat, text, loaded, drafter, beside))
