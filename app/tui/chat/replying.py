"""Requests replies and shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from slipstream.app.chats.records import Figures
from slipstream.app.library.load_request import BUNDLED, model_name
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.events import Done, Loaded, Prefilling, Stepped
from slipstream.app.tui.chat.compacting import Compacting
from slipstream.app.tui.chat.context_meter import ContextMeter
from slipstream.app.tui.chat.conversation import Turn
from slipstream.app.tui.chat.model import ChatModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.reply import Reply
from slipstream.app.tui.chat.selection import Editing
from slipstream.app.tui.engine_service import EngineService, ReplyFailed
from slipstream.app.tui.parts.format import footnote
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError

AsyncCallback = Callable[[], Awaitable[None]]


class Replying:
    """Requests replies, one at a time, and shows their events."""

    def __init__(
        self,
        page: ChatPage,
        engine: EngineService,
        model: ChatModel,
        editing: Editing,
        context: ContextMeter,
        compacting: Compacting,
        show_chat: AsyncCallback,
    ) -> None:
        """Requests nothing yet.

        Args:
            editing: The message that the next question replaces.
        """
        self._page, self._engine, self._model, self._editing = page, engine, model, editing
        self._context, self._compacting, self._show_chat = context, compacting, show_chat
        self.turn: Turn | None = None  # the question that is being answered
        self.widget: Reply | None = None  # the reply that is being written
        self._then: AsyncCallback | None = None  # called once the reply has ended
        self._retried = False  # whether the engine was restarted for this question
        self._compacted = False  # whether the chat was summarized for this question
        self._edited = False  # whether this question replaces an earlier one
        self._larger_offered = False  # whether the hint about larger models was shown

    @property
    def writing(self) -> bool:
        """Whether a reply or a summary is being generated."""
        return self.turn is not None or self._compacting.active

    # --- requests -------------------------------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Sends a question, once the model is loaded."""
        if not text.strip():
            return
        if self.writing:
            self._page.hint("A reply is being written. Esc stops it; your message stays in the prompt.")
        elif self._model.loaded is None:
            self._model.need(lambda: self.send(self._page.prompt.message))
        else:
            request, beside = self._engine.next_request(), self._editing.message
            try:
                turn = self._page.conversation.ask(text, self._model.loaded, self._model.drafter, request, beside)
            except SlipstreamError as error:
                await self._page.notice(error)
                return
            self._edited = beside is not None
            self._page.prompt.remember(text)
            self._page.prompt.put("")
            self._page.adopt_prompt()
            self._editing.leave()
            await self._page.end_welcome()
            await self._begin(turn)

    async def again(self, message: int | None = None) -> None:
        """Requests another reply.

        Args:
            message: The question, or the reply to it; None for the last question.
        """

        def ask(loaded: Loaded) -> Turn | None:
            request = self._engine.next_request()
            return self._page.conversation.ask_again(loaded, self._model.drafter, request, message)

        await self._ask(ask, "Nothing was said yet.")

    async def go_on(self) -> None:
        """Continues a stopped reply as if it had never stopped."""
        await self._ask(self._rest, "The last reply ended by itself. F5 asks for another one.")

    def _rest(self, loaded: Loaded) -> Turn | None:
        return self._page.conversation.go_on(loaded, self._model.drafter, self._engine.next_request())

    async def _ask(self, ask: Callable[[Loaded], Turn | None], otherwise: str) -> None:
        """Begins a turn once the model is loaded; shows ``otherwise`` if there is none."""
        if self.refuses():
            return
        if self._model.loaded is None:
            self._model.need(lambda: self._ask(ask, otherwise))
            return
        try:
            turn = ask(self._model.loaded)
        except SlipstreamError as error:
            await self._page.notice(error)
            return
        if turn:
            await self._begin(turn)
        else:
            self._page.hint(otherwise)

    async def compact(self, word: str = "") -> None:
        """Summarizes the older messages; ``undo`` restores them."""
        if word not in ("", "undo"):
            raise UsageError(f"/compact takes nothing, or undo: {one_line(word)}.", "Nothing was changed.")
        if self.refuses():
            return
        if word:
            await self._compacting.undo()
        elif self._model.loaded is None:
            self._page.conversation.compaction()  # raises an error before the load if there is too little to summarize
            self._model.need(self.compact)
        else:
            await self._compacting.begin(self._model.loaded, self._model.drafter)

    async def _make_room(self, turn: Turn) -> bool:
        """Starts a summary, after which the question is sent again; returns whether it has started."""
        loaded, self._compacted = self._model.loaded, True
        if loaded is None:
            return False
        try:
            await self._compacting.begin(loaded, self._model.drafter, lambda: self.send(turn.asked.content))
        except SlipstreamError:  # there is nothing to summarize: the message itself is too long
            return False
        self._page.hint("The context is full: the older messages are summarized first.")
        return True

    def refuses(self) -> bool:
        """Whether a reply is being generated; shows a hint if so."""
        if self.writing:
            self._page.hint("Esc stops the reply first.")
        return self.writing

    def stop(self) -> None:
        """Stops the current reply or summary, or a load that waits for another machine."""
        if self._model.awaits:
            self._engine.stop()
        if self._compacting.active:
            self._compacting.stop()
        if self.turn and self.widget:
            self._engine.stop()
            self.widget.note("stopping")

    def end_thoughts(self) -> None:
        """Ends the model's reasoning, so that the answer begins."""
        if self.widget and self.widget.thinking.under_way:
            self._engine.end_thoughts()
            self.widget.note("ending its thoughts")
        else:
            self._page.hint("The model is not thinking now.")

    async def after(self, then: AsyncCallback) -> None:
        """Stops the current reply, and calls ``then`` once it has ended."""
        if self._compacting.active:
            self._compacting.leave(then)
        elif self.writing:
            self._then = then
            self._engine.stop()
        else:
            await then()

    # --- events of the engine -------------------------------------------------------------------------------------

    async def _begin(self, turn: Turn) -> None:
        """Shows the empty reply, or the one to continue, and requests it from the engine."""
        page = self._page
        page.drafts.begin()
        self._context.begin()
        self.turn = turn
        page.unfinished = False
        said = page.conversation.messages()
        await page.transcript.go_to(said if turn.before else said[:-1])
        reply = page.transcript.find(turn.reply.id)
        if isinstance(reply, Reply):
            reply.resume()
        else:
            reply = Reply(turn.reply.id)
            await page.transcript.add(reply)
        self.widget = reply
        page.mark_branches()
        page.transcript.to_end()
        page.prompt.focus()
        page.status.begin(turn.generate.drafter)
        page.show_title()
        self._engine.reply(turn.generate, turn.reply.id, turn.before)

    def prefilling(self, event: Prefilling) -> None:
        if self.widget:
            self.widget.prefilling(event)
            self._page.status.prefilling(event)

    def stepped(self, step: Stepped) -> None:
        if self.widget:
            self.widget.write(step.pieces, step.speed, step.divided)
            self._page.status.step(step)

    async def done(self, done: Done) -> None:
        self._retried = self._compacted = False
        before, figures, text = self.turn.before if self.turn else None, Figures.of(done), done.text
        if before:
            figures = before.figures.followed_by(figures) if before.figures else figures
            text = before.content + text
        self._page.status.end(figures.speed)  # the same figures as in the footnote
        if self.turn and self.widget:
            await self.widget.finish(footnote(figures, self.turn.generate.drafter, done.reason), text, done.speed)
        await self._page.name_failed(done.failed)
        for words, hint in done.remarks.items():
            await self._page.remark(words, hint)
        if done.reason == "context":
            await self._page.remark(
                "the context is full: the reply could not go on.",
                "Ctrl-G goes on without the oldest messages; Ctrl-N begins a new chat.",
            )
        self._offer_larger()
        await self._end()

    def _offer_larger(self) -> None:
        """Hints at larger models once, if the bundled model's steps are too short for drafting to gain."""
        short = self._page.status.short_step_ms is not None
        if short and not self._larger_offered and model_name(self._model.load, Paths.default()) == BUNDLED:
            self._larger_offered = True
            self._page.hint("Guessing gains more on a larger model; Ctrl-L lists some")

    async def failed(self, message: ReplyFailed) -> None:
        """Shows the error; if the engine died before the reply began, sends the question again, once."""
        turn, widget = self.turn, self.widget
        self._page.status.idle()
        if message.died:
            self._model.died()
            unread = turn and not message.begun and not self._retried and not self._then
            if turn and widget and unread:  # the engine may have ended while idle
                self._retried = True
                await widget.remove()
                await self._end()
                self._model.need(partial(self._retry, turn.asked.chat))
                return
        if turn and widget:
            if message.begun or message.died:
                await widget.finish("interrupted")
            else:  # refused: puts the question back into the prompt
                if not turn.again:
                    self._page.prompt.give_back(turn.asked.content)
                with suppress(SlipstreamError):  # the error shown below is the cause
                    self._page.conversation.withdraw(turn)
                await self._show_chat()
        makes_room = (
            turn
            and not turn.again
            and not (self._compacted or self._edited or self._then)
            and isinstance(message.error, ContextFullError)
            and self._page.conversation.overflow == "compact"
        )
        self._compacted = False
        if turn and makes_room:
            await self._end()
            if not await self._make_room(turn):
                await self._page.notice(message.error)
            return
        await self._page.notice(message.error)
        await self._end()

    async def _retry(self, chat: str) -> None:
        """Sends the question again, unless another chat is open."""
        now = self._page.conversation.chat
        turn = self._rest(self._model.loaded) if self._model.loaded and now and now.id == chat else None
        if turn:
            await self._begin(turn)

    async def _end(self) -> None:
        self.turn = self.widget = None
        self._page.check_unfinished()
        self._page.list_chats()
        self._page.status.switch(self._model.drafter, writing=False)
        self._page.refresh_keys()
        then, self._then = self._then, None
        if then:
            await then()
