"""Has the model summarize the older messages of the chat, and shows the summary while it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from slipstream.app.chats.compaction import Compaction
from slipstream.app.protocol import Loaded, Stepped
from slipstream.app.tui.chat.context_meter import ContextMeter
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.reply import Reply
from slipstream.app.tui.engine_service import EngineService, SummaryStreamed
from slipstream.app.tui.parts.format import plural
from slipstream.models.errors import SlipstreamError

AsyncCallback = Callable[[], Awaitable[None]]
_NO_MESSAGE = -1  # number of a reply that is not kept


class Compacting:
    """Writes one summary at a time; until it is complete, nothing of the chat changes."""

    def __init__(self, page: ChatPage, engine: EngineService, context: ContextMeter) -> None:
        self._page, self._engine, self._context = page, engine, context
        self._under_way: tuple[Compaction, Loaded, Reply] | None = None
        self._then: AsyncCallback | None = None  # what follows a summary
        self._anyway: AsyncCallback | None = None  # what follows the end, whatever came of it

    @property
    def active(self) -> bool:
        return self._under_way is not None

    async def begin(self, loaded: Loaded, drafter: str, then: AsyncCallback | None = None) -> None:
        """Begins a summary.

        Args:
            then: Called once it is complete; not where it is stopped or fails.

        Raises:
            UsageError: If there is too little to summarize.
        """
        page, engine = self._page, self._engine
        plan = page.conversation.compaction()
        widget = Reply(_NO_MESSAGE)
        self._under_way, self._then = (plan, loaded, widget), then
        await page.transcript.add(widget)
        widget.note(f"summarizing {plural(plan.count, 'message')} · Esc stops")
        page.transcript.to_end()
        page.refresh_keys()

        engine.summarize(page.conversation.summary_of(plan, loaded, drafter, engine.next_request))

    def stop(self) -> None:
        self._engine.stop()
        if self._under_way:
            self._under_way[2].note("stopping")

    def leave(self, then: AsyncCallback) -> None:
        """Stops, and calls ``then`` once it has ended."""
        self._anyway = then
        self.stop()

    async def undo(self) -> None:
        """Brings back what the last summary stands for."""
        if not self._page.conversation.undo_compact():
            self._page.hint("This chat has no summary.")
            return
        await self._show()
        self._page.hint("The model reads the summarized messages again.")

    # --- what comes -----------------------------------------------------------------------------------------------

    def streamed(self, message: SummaryStreamed) -> None:
        if self._under_way:
            widget, event = self._under_way[2], message.event
            if isinstance(event, Stepped):
                widget.write(event.pieces, event.speed, event.divided)
            else:
                widget.prefilling(event)

    async def done(self, text: str) -> None:
        """Keeps the summary; nothing changes where it was stopped."""
        if not self._under_way:
            return
        plan, loaded, _ = self._under_way
        try:
            if text:
                self._page.conversation.compact(plan, text, loaded)
        except SlipstreamError as error:
            await self.failed(error)
            return
        await self._end()
        if text:
            await self._show()
            self._page.hint(f"{plural(plan.count, 'message')} summarized; /compact undo brings them back.")
        else:
            self._page.hint("Stopped; nothing was changed.")
        await self._follow(self._then if text else None)

    async def failed(self, error: SlipstreamError) -> None:
        """Says why there is no summary; the chat is as it was."""
        await self._end()
        await self._page.notice(SlipstreamError(error.title, f"{error.hint} The chat is as it was.".strip()))
        await self._follow(None)

    async def _end(self) -> None:
        if self._under_way:
            await self._under_way[2].remove()
        self._under_way = None
        self._page.refresh_keys()

    async def _show(self) -> None:
        messages = self._page.conversation.messages()
        await self._context.clear()
        await self._page.transcript.go_to(messages)
        self._page.mark_branches()
        await self._context.show(messages)
        self._page.transcript.to_end()
        self._page.list_chats()

    async def _follow(self, then: AsyncCallback | None) -> None:
        then, self._then, self._anyway = self._anyway or then, None, None
        if then:
            await then()
