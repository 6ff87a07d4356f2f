"""Summarizes the older messages of the chat with the model, and shows the summary while it is generated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from slipstream.app.chats.compaction import Compaction
from slipstream.app.platform.safe_text import plural
from slipstream.app.protocol.events import Loaded, Stepped
from slipstream.app.tui.chat.context_meter import ContextMeter
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.reply import Reply
from slipstream.app.tui.engine_service import EngineService, SummaryStreamed
from slipstream.models.errors import SlipstreamError

AsyncCallback = Callable[[], Awaitable[None]]
_NO_MESSAGE = -1  # id of a reply that is not stored


class _Summary(NamedTuple):
    """A summary that is being generated."""

    plan: Compaction
    loaded: Loaded
    widget: Reply


class Compacting:
    """Generates one summary at a time; the chat is unchanged until the summary is complete."""

    def __init__(self, page: ChatPage, engine: EngineService, context: ContextMeter) -> None:
        self._page, self._engine, self._context = page, engine, context
        self._summary: _Summary | None = None
        self._on_complete: AsyncCallback | None = None  # called after a complete summary
        self._on_end: AsyncCallback | None = None  # called instead of ``_on_complete``, however the summary ends

    @property
    def active(self) -> bool:
        return self._summary is not None

    async def begin(self, loaded: Loaded, drafter: str, then: AsyncCallback | None = None) -> None:
        """Begins a summary.

        Args:
            then: Called once the summary is complete, not if it is stopped or fails.

        Raises:
            UsageError: If there is too little to summarize.
        """
        page, engine = self._page, self._engine
        plan = page.conversation.compaction()
        widget = Reply(_NO_MESSAGE)
        self._summary, self._on_complete = _Summary(plan, loaded, widget), then
        await page.transcript.add(widget)
        widget.note(f"summarizing {plural(plan.count, 'message')} · Esc stops")
        page.transcript.to_end()
        page.refresh_keys()
        engine.summarize(page.conversation.summary_of(plan, loaded, drafter, engine.next_request))

    def stop(self) -> None:
        self._engine.stop()
        if self._summary:
            self._summary.widget.note("stopping")

    def leave(self, then: AsyncCallback) -> None:
        """Stops the summary, and calls ``then`` once it has ended."""
        self._on_end = then
        self.stop()

    async def undo(self) -> None:
        """Restores the messages that the last summary replaced."""
        if not self._page.conversation.undo_compact():
            self._page.hint("This chat has no summary.")
            return
        await self._show_chat()
        self._page.hint("The model reads the summarized messages again.")

    # --- events of the engine -------------------------------------------------------------------------------------

    def streamed(self, message: SummaryStreamed) -> None:
        if self._summary:
            widget, event = self._summary.widget, message.event
            if isinstance(event, Stepped):
                widget.write(event.pieces, event.speed, event.divided)
            else:
                widget.prefilling(event)

    async def done(self, text: str) -> None:
        """Applies the summary; an empty text means that it was stopped, and changes nothing."""
        if not self._summary:
            return
        plan, loaded, _ = self._summary
        try:
            if text:
                self._page.conversation.compact(plan, text, loaded)
        except SlipstreamError as error:
            await self.failed(error)
            return
        await self._end()
        if text:
            await self._show_chat()
            self._page.hint(f"{plural(plan.count, 'message')} summarized; /compact undo brings them back.")
        else:
            self._page.hint("Stopped; nothing was changed.")
        await self._call(self._on_complete if text else None)

    async def failed(self, error: SlipstreamError) -> None:
        await self._end()
        await self._page.notice(SlipstreamError(error.title, f"{error.hint} The chat is as it was.".strip()))
        await self._call(None)

    async def _end(self) -> None:
        if self._summary:
            await self._summary.widget.remove()
        self._summary = None
        self._page.refresh_keys()

    async def _show_chat(self) -> None:
        messages = self._page.conversation.messages()
        await self._context.clear()
        await self._page.transcript.go_to(messages)
        self._page.mark_branches()
        await self._context.show(messages)
        self._page.transcript.to_end()
        self._page.list_chats()

    async def _call(self, then: AsyncCallback | None) -> None:
        then, self._on_complete, self._on_end = self._on_end or then, None, None
        if then:
            await then()
