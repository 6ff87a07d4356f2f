"""Shows how full the context is, and which messages were dropped from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slipstream.app.chats.records import Figures, StoredMessage
from slipstream.app.platform.safe_text import plural
from slipstream.app.protocol.events import Counted, Done, Prefilling, Stepped
from slipstream.app.tui.chat.page import ChatPage

_FULL: Final = {
    "stop": "The context is full: a message would not be sent. /compact makes room.",
    "compact": "The context is full: the older messages are summarized before the next reply.",
}


class ContextMeter:
    """Shows the used context, and marks the dropped messages."""

    def __init__(self, page: ChatPage) -> None:
        self._page = page
        self._prompt_tokens = 0  # prompt tokens of the current reply
        self._left_out = 0  # number of dropped messages
        self._full = False  # whether the hint that the context is full was shown

    async def clear(self) -> None:
        self._left_out = 0
        await self._page.transcript.forget(None)

    async def show(self, messages: Sequence[StoredMessage]) -> None:
        """Shows the used context and the dropped messages of a chat's last reply, without a hint."""
        kept = next((message.figures for message in reversed(messages) if message.figures), Figures())
        self._page.top_bar.used = kept.prompt_tokens + kept.speed.tokens
        if kept.dropped_messages:
            self._left_out = kept.dropped_messages
            await self._leave_out(kept.dropped_messages, kept.dropped_tokens)
        elif any(message.summary for message in messages):
            await self._leave_out(0, 0)

    async def counted(self, counted: Counted) -> None:
        """Updates the meter from a count of the chat and the typed text."""
        overflow = self._page.conversation.overflow
        if counted.dropped_messages and overflow != "drop":
            self._page.top_bar.used = counted.tokens + counted.dropped_tokens
            if not self._full:
                self._page.hint(_FULL[overflow])
            self._full = True
            return
        self._full = False
        self._page.top_bar.used = counted.tokens
        await self._leave_out(counted.dropped_messages, counted.dropped_tokens)

    def begin(self) -> None:
        """Starts a reply from the current count; a prompt that is already in the KV cache sends no ``Prefilling``."""
        self._prompt_tokens = self._page.top_bar.used

    def prefilling(self, event: Prefilling) -> None:
        self._page.top_bar.used = self._prompt_tokens = event.total + 1  # prefill leaves out the last token

    def stepped(self, step: Stepped) -> None:
        self._page.top_bar.used = self._prompt_tokens + step.speed.tokens

    async def done(self, done: Done) -> None:
        self._page.top_bar.used = done.prompt_tokens + done.speed.tokens
        await self._leave_out(done.dropped_messages, done.dropped_tokens)

    async def _leave_out(self, messages: int, tokens: int) -> None:
        """Marks the dropped messages; shows a hint when their number grows."""
        first = self._page.conversation.first_read(messages) if messages else None
        summarized = self._page.conversation.summarized() if first is None else None
        if messages > self._left_out:
            counts = f"{plural(messages, 'message')}, {plural(tokens, 'token')}"
            self._page.hint(f"To make room, the model no longer reads the oldest {counts}. The chat keeps them.")
        self._left_out = messages
        await self._page.transcript.forget(*(summarized or (first, messages)), tokens)
