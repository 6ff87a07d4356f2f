"""Generates replies and summaries, one at a time, shows them as they come, and prefills what is typed meanwhile."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from textual.timer import Timer

from slipstream.app.chats.compaction import Compaction
from slipstream.app.chats.records import UNFINISHED, Figures
from slipstream.app.library.load_request import BUNDLED, model_name
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.app.protocol.events import Done, Loaded, Prefilling, Stepped
from slipstream.app.protocol.requests import AUTO, PAUSE, PLAIN
from slipstream.app.tui.chat.conversation import Exchange
from slipstream.app.tui.chat.model import ActiveModel
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.app.tui.chat.welcome import STORY
from slipstream.app.tui.engine_service import EngineService, ReplyFailed
from slipstream.app.tui.parts.format import footnote, guesses_in_words
from slipstream.models.errors import ContextFullError, SlipstreamError, UsageError

AsyncCallback = Callable[[], Awaitable[None]]
NO_MESSAGE: Final = -1  # id of a reply that is not stored
GUESSERS: Final = (  # those first that are right more often on any text; drafters that are not here come last
    "eagle3", "mtp", "dspark", "dflash", "medusa", "kangaroo", "draft", "space", "recycle", "lookahead", "lookup",
)  # fmt: skip
GUARD_EVERY: Final = 32  # tokens of a reply between two looks whether it repeats itself
MOST_READ: Final = 1200  # characters that one look reads
TIMES: Final = 4  # how often a passage stands in a row in a reply that repeats itself
SHORTEST: Final = 8  # characters of such a passage
LEAST_REPEATED: Final = 120  # characters of all of them
DRY: Final = 0.8  # the usual strength of the penalty
REPEATS: Final = "repeats itself · Esc stops · Alt-R tries again without repeats"
AT_ONCE: Final = 100  # a longer insertion, or one of several lines, counts as a paste and is prefilled at once


class _Summary(NamedTuple):
    plan: Compaction
    loaded: Loaded
    widget: ReplyView


class SummaryWriter:
    """Summarizes the older messages; the chat is unchanged until the summary is complete."""

    def __init__(self, page: ChatPage, engine: EngineService) -> None:
        self._page, self._engine = page, engine
        self._summary: _Summary | None = None
        self._on_complete: AsyncCallback | None = None  # called after a complete summary
        self._on_end: AsyncCallback | None = None  # called instead of ``_on_complete``, however the summary ends

    @property
    def active(self) -> bool:
        return self._summary is not None

    async def begin(self, loaded: Loaded, then: AsyncCallback | None = None) -> None:
        """Begins a summary; ``then`` is called once it is complete, not if it is stopped or fails."""
        page = self._page
        plan = page.conversation.compaction()
        widget = ReplyView(NO_MESSAGE)
        self._summary, self._on_complete = _Summary(plan, loaded, widget), then
        await page.transcript.add(widget)
        widget.note(f"summarizing {plural(plan.count, 'message')} · Esc stops")
        page.transcript.to_end()
        page.refresh_keys()
        self._engine.summarize(page.conversation.summary_of(plan, loaded))

    def stop(self) -> None:
        self._engine.stop()
        if self._summary:
            self._summary.widget.note("stopping")

    def leave(self, then: AsyncCallback) -> None:
        self._on_end = then
        self.stop()

    async def undo(self) -> None:
        if not self._page.conversation.undo_compact():
            self._page.hint("This chat has no summary.")
            return
        await self._show_chat()
        self._page.hint("The model reads the summarized messages again.")

    def streamed(self, event: Stepped | Prefilling) -> bool:
        """Shows an event; returns whether it is one of a summary."""
        if self._summary is None:
            return False
        if isinstance(event, Stepped):
            self._summary.widget.write(event.pieces, event.speed, event.divided)
        else:
            self._summary.widget.prefilling(event)
        return True

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
        page = self._page
        await page.meter.clear()
        await page.go_to()
        page.transcript.to_end()
        page.list_chats()

    async def _call(self, then: AsyncCallback | None) -> None:
        then, self._on_complete, self._on_end = self._on_end or then, None, None
        if then:
            await then()


class ReplyWriter:
    """Requests replies, one at a time, and shows their events."""

    def __init__(self, page: ChatPage, engine: EngineService, model: ActiveModel, show_chat: AsyncCallback) -> None:
        self._page, self._engine, self._model, self._show_chat = page, engine, model, show_chat
        self.summary = SummaryWriter(page, engine)
        self.exchange: Exchange | None = None  # the question that is being answered
        self.widget: ReplyView | None = None  # the reply that is being written
        self._then: AsyncCallback | None = None  # called once the reply has ended
        self._retried = False  # whether the engine was restarted for this question
        self._compacted = False  # whether the chat was summarized for this question
        self._edited = False  # whether this question replaces an earlier one
        self._repeats, self._look_at = False, 0  # whether the reply repeats itself; tokens at which to look again
        self._larger_offered = False  # whether the hint about larger models was shown

    @property
    def writing(self) -> bool:
        return self.exchange is not None or self.summary.active

    @property
    def busy_with(self) -> str:
        """What the engine has to finish before it is free for other work; empty if it is idle."""
        if self.writing:
            return "A reply is being written"
        return "The model is being loaded" if self._engine.busy else ""

    # --- requests -------------------------------------------------------------------------------------------------

    async def show_guesses(self, text: str = "") -> None:
        """Replies once with a drafter that guesses all the time, its words coloured; the end says what that gained."""
        text, loaded = text or STORY, self._model.loaded
        if self.refuses():
            return
        if loaded is None:
            self._model.need(lambda: self.show_guesses(text))
            return
        usable = [offer.name for offer in loaded.drafters if offer.usable and offer.name not in (AUTO, PLAIN)]
        drafter = next((name for name in (*GUESSERS, *usable) if name in usable), "")
        if not drafter:
            raise UsageError("no drafter can guess for this model.", "Ctrl-D says what each lacks.")
        await self.send(text, drafter)

    async def send(self, text: str, drafter: str = "") -> None:
        """Sends a message; ``drafter`` guesses for its reply alone, empty for the chat's."""
        page = self._page
        if not text.strip():
            return
        if self.writing and (page.waiting or page.editing is not None or self.summary.active):
            page.hint("One message waits already." if page.waiting else "Esc stops it; your message stays here.")
        elif self.writing:
            page.wait(text)
        elif self._model.loaded is None:
            self._model.need(lambda: self.send(page.prompt.message))
        else:
            beside = page.editing
            try:
                exchange = page.conversation.ask(text, self._model.loaded, beside, drafter)
            except SlipstreamError as error:
                await page.notice(error)
                return
            self._edited = beside is not None
            page.prompt.remember(text)
            page.prompt.put("")
            page.adopt_prompt()
            page.leave_edit()
            await page.end_welcome()
            await self._begin(exchange)

    async def again(self, message: int | None = None) -> None:
        ask_again = self._page.conversation.ask_again
        await self._ask(lambda loaded: ask_again(loaded, message), "Nothing was said yet.")

    async def go_on(self) -> None:
        await self._ask(self._page.conversation.go_on, "The last reply ended by itself. F5 asks for another one.")

    async def _ask(self, ask: Callable[[Loaded], Exchange | None], otherwise: str) -> None:
        if self.refuses():
            return
        if self._model.loaded is None:
            self._model.need(lambda: self._ask(ask, otherwise))
            return
        try:
            exchange = ask(self._model.loaded)
        except SlipstreamError as error:
            await self._page.notice(error)
            return
        if exchange:
            await self._begin(exchange)
        else:
            self._page.hint(otherwise)

    async def compact(self, word: str = "") -> None:
        if word not in ("", "undo"):
            raise UsageError(f"/compact takes nothing, or undo: {one_line(word)}.", "Nothing was changed.")
        if self.refuses():
            return
        if word:
            await self.summary.undo()
        elif self._model.loaded is None:
            self._page.conversation.compaction()  # raises an error before the load if there is too little to summarize
            self._model.need(self.compact)
        else:
            await self.summary.begin(self._model.loaded)

    async def _make_room(self, exchange: Exchange) -> bool:
        loaded, self._compacted = self._model.loaded, True
        if loaded is None:
            return False
        try:
            await self.summary.begin(loaded, lambda: self.send(exchange.asked.content))
        except SlipstreamError:  # there is nothing to summarize: the message itself is too long
            return False
        self._page.hint("The context is full: the older messages are summarized first.")
        return True

    def refuses(self) -> bool:
        if self.writing:
            self._page.hint("Esc stops the reply first.")
        return self.writing

    def stop(self) -> None:
        if self._page.waiting:
            self._page.prompt.give_back(self._page.take_waiting())
            return
        if self._model.awaits:
            self._engine.stop()
        if self.summary.active:
            self.summary.stop()
        if self.exchange and self.widget:
            self._engine.stop()
            self.widget.note("stopping")

    def end_thoughts(self) -> None:
        if self.widget and self.widget.thinking.under_way:
            self._engine.end_thoughts()
            self.widget.note("ending its thoughts")
        else:
            self._page.hint("The model is not thinking now.")

    async def after(self, then: AsyncCallback) -> None:
        if self.summary.active:
            self.summary.leave(then)
        elif self.writing:
            if self._page.waiting:
                self._page.prompt.give_back(self._page.take_waiting())
            self._then = then
            self._engine.stop()
        else:
            await then()

    # --- events of the engine -------------------------------------------------------------------------------------

    async def _begin(self, exchange: Exchange) -> None:
        page = self._page
        page.drafts.begin()
        page.meter.begin()
        self.exchange, self._repeats, self._look_at = exchange, False, GUARD_EVERY
        await page.transcript.go_to(exchange.shown if exchange.before else exchange.shown[:-1])
        reply = page.transcript.find(exchange.reply.id)
        if isinstance(reply, ReplyView):
            reply.resume()
        else:
            reply = ReplyView(exchange.reply.id)
            await page.transcript.add(reply)
        if exchange.once:
            reply.colour(True)
        if page.status.explains != (explains := exchange.once or page.transcript.coloured):
            page.status.explain(explains)
        self.widget = reply
        page.mark_branches()
        page.transcript.to_end()
        page.prompt.focus()
        page.status.begin(exchange.generate.drafter, once=exchange.once)
        page.show_title()
        self._engine.reply(exchange.generate, exchange.reply.id, exchange.before)

    def prefilling(self, event: Prefilling) -> None:
        if self.widget:
            self.widget.prefilling(event)
            self._page.status.prefilling(event)

    def stepped(self, step: Stepped) -> None:
        if self.widget:
            self.widget.write(step.pieces, step.speed, step.divided)
            self._page.status.step(step)
            if not self._repeats and step.speed.tokens >= self._look_at:
                self._look_at = step.speed.tokens + GUARD_EVERY
                self._repeats = repeats(self.widget.text[-MOST_READ:])
                if self._repeats:
                    self.widget.note(REPEATS)

    async def again_without_repeats(self) -> None:
        page, sampling = self._page, self._page.conversation.sampling.effective
        if not sampling.dry:
            page.conversation.sample(replace(sampling, dry=DRY))
            page.hint("Repeats are penalized in this chat (DRY); /preset default ends that.")
        await self.after(self.again)

    async def done(self, done: Done) -> None:
        page, exchange = self._page, self.exchange
        self._retried = self._compacted = False
        before, figures, text = exchange.before if exchange else None, Figures.of(done), done.text
        if before:
            figures = before.figures.followed_by(figures) if before.figures else figures
            text = before.content + text
        page.conversation.unfinished = done.reason in UNFINISHED
        page.status.end(figures.speed)  # the same figures as in the footnote
        if exchange and self.widget:
            note = footnote(figures, exchange.generate.drafter, done.reason, writer=exchange.new_writer)
            await self.widget.finish(note, text, done.speed)
        await page.name_failed(done.failed)
        for words, hint in done.remarks.items():
            await page.remark(words, hint)
        if done.reason == "context":
            hint = "Ctrl-G goes on without the oldest messages; Ctrl-N begins a new chat."
            await page.remark("the context is full: the reply could not go on.", hint)
        if exchange and exchange.once and figures.speed.tokens:
            self._larger_offered = True
            name = exchange.generate.drafter
            how = f"{name} ({one_line(self._model.named_drafters().get(name, 'a drafter'))})"
            await page.remark(*guesses_in_words(figures.speed, page.larger, how))
        self._offer_larger()
        await self._end()

    def _offer_larger(self) -> None:
        """Hints at larger models once, if the bundled model's steps are too short for drafting to gain."""
        short = self._page.status.short_step_ms is not None
        if short and not self._larger_offered and model_name(self._model.load, Paths.default()) == BUNDLED:
            self._larger_offered = True
            self._page.hint(f"Guessing gains more on a larger model. {self._page.larger}")

    async def failed(self, message: ReplyFailed) -> None:
        """Shows the error; if the engine died before the reply began, sends the question again, once."""
        page, exchange, widget = self._page, self.exchange, self.widget
        if self.summary.active:
            if message.died:
                self._model.died()
            await self.summary.failed(message.error)
            return
        page.status.idle()
        if page.waiting:
            page.prompt.give_back(page.take_waiting())
        if message.died:
            self._model.died()
            unread = exchange and not message.begun and not self._retried and not self._then
            if exchange and widget and unread:  # the engine may have ended while idle
                self._retried = True
                await widget.remove()
                await self._end()
                self._model.need(partial(self._retry, exchange.asked.chat))
                return
        if exchange and widget:
            if message.begun or message.died:
                await widget.finish("interrupted")
                with suppress(SlipstreamError):  # reported when the chat is used next
                    page.conversation.messages()  # tells whether the reply can be continued
            else:  # refused: puts the question back into the prompt
                if not exchange.again:
                    page.prompt.give_back(exchange.asked.content)
                with suppress(SlipstreamError):  # the error shown below is the cause
                    page.conversation.withdraw(exchange)
                await self._show_chat()
        makes_room = (
            exchange
            and not exchange.again
            and not (self._compacted or self._edited or self._then)
            and isinstance(message.error, ContextFullError)
            and page.conversation.overflow == "compact"
        )
        self._compacted = False
        if exchange and makes_room:
            await self._end()
            if not await self._make_room(exchange):
                await page.notice(message.error)
            return
        await page.notice(message.error)
        await self._end()

    async def _retry(self, chat: str) -> None:
        conversation, loaded = self._page.conversation, self._model.loaded
        if loaded and conversation.chat and conversation.chat.id == chat:
            exchange = conversation.go_on(loaded)
            if exchange:
                await self._begin(exchange)

    async def _end(self) -> None:
        page = self._page
        self.exchange = self.widget = None
        page.list_chats()
        page.status.switch()
        page.refresh_keys()
        then, self._then = self._then, None
        if then:
            await then()
        elif page.waiting:
            await self.send(page.take_waiting())


def repeats(text: str) -> bool:
    """Whether a text ends in the same passage several times in a row; lines and tables of few letters do not count."""
    for size in range(SHORTEST, len(text) // TIMES + 1):
        passage = text[-size:]
        if TIMES * size < LEAST_REPEATED and not text.endswith(passage * -(-LEAST_REPEATED // size)):
            continue
        if text.endswith(passage * TIMES) and len({*filter(str.isalnum, passage)}) >= TIMES:
            return True
    return False


class TypingPrefill:
    """Prefills the prompt after a pause in typing, so that only its last words are left when it is sent."""

    def __init__(self, page: ChatPage, engine: EngineService, model: ActiveModel, replies: ReplyWriter) -> None:
        self._page, self._engine, self._model, self._replies = page, engine, model, replies
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
        loaded, conversation = self._model.loaded, self._page.conversation
        if loaded and not self._replies.busy_with:
            text, beside = self._page.prompt.message, self._page.editing
            self._engine.prepare(partial(conversation.ahead, conversation.chat, text, loaded, beside))
