"""The talk between the screen and the engine: ask, show what comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from textual import on

from slipstream.app.chats.records import Figures
from slipstream.app.tui.conversation import Turn
from slipstream.app.tui.figures import footnote
from slipstream.app.tui.messages import (
    EngineEnded,
    ReplyDone,
    ReplyFailed,
    ReplyPrefilling,
    ReplyStreamed,
)
from slipstream.app.tui.screens.view import ChatView
from slipstream.app.tui.widgets.notice import Notice
from slipstream.app.tui.widgets.prompt import Prompt
from slipstream.app.tui.widgets.reply import Reply
from slipstream.models.errors import SlipstreamError


class TalkScreen(ChatView):
    """Takes one chat to the engine and back; the keys are ``ChatScreen``'s."""

    @on(Prompt.Sent)
    async def _sent(self, message: Prompt.Sent) -> None:
        await self._send(message.text)

    async def _send(self, text: str) -> None:
        if not text.strip():
            return
        if self._turn:
            self._hint("A reply is being written. Esc stops it; your message stays in the prompt.")
        elif self._loaded is None:
            self._load_for(lambda: self._send(self.prompt.message))
        else:
            try:
                request = self._room.next_request()
                turn = self._conversation.ask(text, self._loaded, self._drafter, request, self._editing)
            except SlipstreamError as error:
                await self.transcript.add(Notice(error.title, error.hint))
                return
            self.prompt.remember(text)
            self.prompt.put("")
            self._leave_edit()
            if self._welcome:
                await self._welcome.remove()
                self._welcome = None
            await self._begin(turn)

    async def _retry(self, chat: str) -> None:
        """Asks again what a dead engine did not hear, unless its owner has gone to another chat."""
        if self._loaded and self._conversation.chat and self._conversation.chat.id == chat:
            turn = self._conversation.go_on(self._loaded, self._drafter, self._room.next_request())
            if turn:
                await self._begin(turn)

    async def _after_reply(self, then: Callable[[], Awaitable[None]]) -> None:
        """Stops a reply that is being written and goes on once it has ended."""
        if self._turn:
            self._then = then
            self._room.stop()
        else:
            await then()

    async def _begin(self, turn: Turn) -> None:
        """Shows the empty reply, or the one that goes on, and asks the engine for it."""
        self._turn = turn
        self._unfinished = False
        said = self._conversation.messages()
        await self.transcript.go_to(said if turn.before else said[:-1])
        reply = self.transcript.find(turn.reply.id)
        if isinstance(reply, Reply):
            reply.resume()
        else:
            reply = Reply(turn.reply.id)
            await self.transcript.add(reply)
        self._reply = reply
        self.transcript.mark(self._conversation.forks())
        self.transcript.to_end()
        self.prompt.focus()
        self.top_bar.chat = self._conversation.chat.title if self._conversation.chat else ""
        self._list_chats()
        self.strip.begin(turn.generate.drafter)
        self.refresh_bindings()
        self._room.reply(turn.generate, turn.reply.id, turn.before)

    @on(ReplyPrefilling)
    def _prefilling(self, message: ReplyPrefilling) -> None:
        if self._reply:
            self._reply.prefilling(message.event)
            self.strip.prefilling(message.event)

    @on(ReplyStreamed)
    async def _streamed(self, message: ReplyStreamed) -> None:
        if self._reply and message.steps:
            pieces = [piece for step in message.steps for piece in step.pieces]
            self._reply.write(pieces, message.steps[-1].speed)
            self.strip.begun(message.waited_ms)
            for step in message.steps:
                self.strip.step(step)

    @on(ReplyDone)
    async def _done(self, message: ReplyDone) -> None:
        done = message.done
        self._retried = False
        turn, reply = self._turn, self._reply
        self.strip.end(done.speed)
        if turn and reply:
            figures, text = Figures.of(done), done.text
            if turn.before:
                figures = turn.before.figures.followed_by(figures) if turn.before.figures else figures
                text = turn.before.content + text
            await reply.finish(footnote(figures, turn.generate.drafter, done.reason), text, done.speed)
        if done.reason == "context":
            await self.transcript.add(
                Notice(
                    "the context is full: the reply could not go on.",
                    "Ctrl-G goes on without the oldest messages; Ctrl-N begins a new chat.",
                    remark=True,
                )
            )
        await self._ended()

    @on(ReplyFailed)
    async def _failed(self, message: ReplyFailed) -> None:
        turn, reply = self._turn, self._reply
        self.strip.idle()
        if message.died:
            self._loaded = None
            self.prompt.border_subtitle = "the engine has ended; the next message starts it again"
            unheard = turn and not message.begun and not self._retried and not self._then
            if turn and reply and unheard:  # it may have ended while nothing was asked
                self._retried = True
                await reply.remove()
                await self._ended()
                self._load_for(partial(self._retry, turn.asked.chat))
                return
        if turn and reply:
            if message.begun or message.died:
                await reply.finish("interrupted")
            else:  # refused: as if it had not been sent
                if not turn.again:
                    self.prompt.give_back(turn.asked.content)
                with suppress(SlipstreamError):  # the error that is shown below came first
                    self._conversation.withdraw(turn)
                await self._show_chat()
        await self.transcript.add(Notice(message.error.title, message.error.hint))
        await self._ended()

    @on(EngineEnded)
    async def _engine_ended(self, message: EngineEnded) -> None:
        if not self._room.busy:  # else what is asked meanwhile has started it again
            self._loaded = None
            self.prompt.border_subtitle = "the engine has ended; the next message starts it again"
            await self.transcript.add(Notice(message.error.title, message.error.hint))

    async def _ended(self) -> None:
        self._turn = self._reply = None
        with suppress(SlipstreamError):
            self._unfinished = self._conversation.unfinished
        self._list_chats()
        self.strip.switch(self._drafter, writing=False)
        self.refresh_bindings()
        then, self._then = self._then, None
        if then:
            await then()
