"""The talk and its context: how full it is, and what the model no longer reads."""

from __future__ import annotations

from contextlib import suppress

from textual import on

from slipstream.app.tui.conversation import Turn
from slipstream.app.tui.figures import plural
from slipstream.app.tui.messages import PromptCounted, ReplyDone, ReplyPrefilling, ReplyStreamed
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.models.errors import SlipstreamError


class ContextTalk(TalkScreen):
    """A talk that is never silent about what does not fit."""

    _asked_tokens = 0  # of the prompt that is being answered
    _left_out = 0  # messages that the model no longer reads

    @on(PromptCounted)
    async def _prompt_counted(self, message: PromptCounted) -> None:
        counted = message.counted
        if self._turn is None:
            self.top_bar.used = counted.tokens
            await self._leave_out(counted.dropped_messages, counted.dropped_tokens)

    async def _begin(self, turn: Turn) -> None:
        """Goes on from what was counted: a prompt that is read already is not told of again."""
        self._asked_tokens = self.top_bar.used
        await super()._begin(turn)

    @on(ReplyPrefilling)
    def _prompt_read(self, message: ReplyPrefilling) -> None:
        self.top_bar.used = self._asked_tokens = message.event.total + 1  # its last token is not read

    @on(ReplyStreamed)
    def _reply_grows(self, message: ReplyStreamed) -> None:
        if message.steps:
            self.top_bar.used = self._asked_tokens + message.steps[-1].speed.tokens

    @on(ReplyDone)
    async def _reply_over(self, message: ReplyDone) -> None:
        done = message.done
        self.top_bar.used = done.prompt_tokens + done.speed.tokens
        await self._leave_out(done.dropped_messages, done.dropped_tokens)

    async def _show_chat(self, at: int | None = None) -> None:
        """Shows the conversation, and what the model did not read of it for its last reply."""
        self._left_out = 0
        await self.transcript.forget(None)
        await super()._show_chat(at)
        with suppress(SlipstreamError):  # shown already
            kept = next((m.figures for m in reversed(self._conversation.messages()) if m.figures), None)
            if kept and kept.dropped_messages:
                self._left_out = kept.dropped_messages  # no news
                await self._leave_out(kept.dropped_messages, kept.dropped_tokens)

    async def _leave_out(self, messages: int, tokens: int) -> None:
        """Marks what the model no longer reads; says so when it becomes more."""
        first = self._conversation.first_read(messages) if messages else None
        if messages > self._left_out:
            counts = f"{plural(messages, 'message')}, {plural(tokens, 'token')}"
            self._hint(f"The context is full: the model no longer reads the oldest {counts}. The chat keeps them.")
        self._left_out = messages
        await self.transcript.forget(first, messages, tokens)
