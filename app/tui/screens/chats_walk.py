"""The talk and its messages: walk from one to the next, edit, ask again, change branches, copy, go on."""

from __future__ import annotations

from textual import events, on

from slipstream.app.safe_text import clean
from slipstream.app.tui.screens.talk import TalkScreen
from slipstream.app.tui.widgets.notice import Notice
from slipstream.app.tui.widgets.question import Question
from slipstream.app.tui.widgets.reply import Reply
from slipstream.app.tui.widgets.said import Said
from slipstream.models.errors import SlipstreamError


class WalkTalk(TalkScreen):
    """A talk whose messages can be selected; the keys of a selected one are those of ``Said``."""

    # --- walk -----------------------------------------------------------------------------------------------------

    async def action_select(self, step: int) -> None:
        """Selects the message above (-1) or below (1); past the newest one the prompt has the focus again."""
        selected, said = self.transcript.selected, self.transcript.said
        at = len(said) if selected is None else said.index(selected)
        if step > 0 and at + 1 >= len(said) and not self.transcript.whole:
            await self.transcript.show_later(self._conversation.messages())
            self.transcript.mark(self._conversation.forks())
        if step < 0 and at == 0 and said:
            await self.transcript.show_earlier(self._conversation.messages())
            self.transcript.mark(self._conversation.forks())
            at = self.transcript.said.index(said[0])
        said = self.transcript.said
        if step > 0 and at + 1 >= len(said):
            self.action_deselect()
        elif said:
            self._select(said[max(at + step, 0)])

    def _select(self, said: Said) -> None:
        said.select()
        self.transcript.show_message(said)
        self.refresh_bindings()

    def action_deselect(self) -> None:
        """Goes back to the prompt."""
        self.set_focus(self.prompt)
        if self.transcript.whole and self.transcript.is_vertical_scroll_end:
            self.transcript.to_end()

    @on(Said.Typed)
    def _typed_on(self, message: Said.Typed) -> None:
        """Goes on in the prompt with what was typed while a message was selected."""
        self.action_deselect()
        if message.pasted:
            self.prompt.post_message(events.Paste(message.text))
        else:
            self.prompt.insert(message.text)

    # --- branches -------------------------------------------------------------------------------------------------

    def action_edit_selected(self) -> None:
        """Puts the selected question into the prompt, to be sent once more in other words."""
        question = self._question()
        if question is None or self._busy():
            return
        if self._editing is None:
            self._set_aside = self.prompt.text
        self._editing = question.message
        self.prompt.put_message(question.text)
        self.prompt.border_title = "in place of an earlier message · Esc leaves it"
        self.set_focus(self.prompt)
        self.refresh_bindings()

    def action_leave_edit(self) -> None:
        """Leaves the earlier message as it is."""
        self._leave_edit()

    async def action_again_selected(self) -> None:
        """Replies once more to the selected question, or in place of the selected reply."""
        if selected := self.transcript.selected:
            await self._again(selected.message)

    async def action_again(self) -> None:
        """Replies to the last question once more."""
        await self._again(None)

    async def _again(self, message: int | None) -> None:
        if self._busy():
            return
        if self._loaded is None:
            self._load_for(lambda: self._again(message))
            return
        try:
            turn = self._conversation.ask_again(self._loaded, self._drafter, self._room.next_request(), message)
        except SlipstreamError as error:
            await self.transcript.add(Notice(error.title, error.hint))
            return
        if turn is None:
            self._hint("Nothing was said yet.")
        else:
            await self._begin(turn)

    async def action_go_on(self) -> None:
        """Lets a reply that was stopped go on as if it had never stopped."""
        if self._busy():
            return
        if self._loaded is None:
            self._load_for(self.action_go_on)
            return
        try:
            turn = self._conversation.go_on(self._loaded, self._drafter, self._room.next_request())
        except SlipstreamError as error:
            await self.transcript.add(Notice(error.title, error.hint))
            return
        if turn is None:
            self._hint("The last reply ended by itself. F5 asks for another one.")
        else:
            await self._begin(turn)

    async def action_branch(self, step: int) -> None:
        """Goes to the branch before (-1) or after (1) this one, where the selected message has others in its place."""
        selected = self.transcript.selected
        other = selected.neighbour(step) if selected else None
        if other is None or self._busy():
            return
        try:
            self._conversation.show(other)
            messages = self._conversation.messages()
        except SlipstreamError as error:
            await self.transcript.add(Notice(error.title, error.hint))
            return
        await self.transcript.go_to(messages, other)
        self.transcript.mark(self._conversation.forks())
        self._unfinished = messages[-1].unfinished
        if shown := self.transcript.find(other):
            self._select(shown)

    def _busy(self) -> bool:
        """Whether a reply is being written; says what to do then."""
        if self._turn:
            self._hint("Esc stops the reply first.")
        return self._turn is not None

    # --- copy -----------------------------------------------------------------------------------------------------

    def action_copy_selected(self) -> None:
        """Copies the selected message through the terminal."""
        if selected := self.transcript.selected:
            self._copy(selected, "the message")

    def action_copy_reply(self) -> None:
        """Copies the last reply through the terminal."""
        reply = self.transcript.last_reply
        if reply and reply.text:
            self._copy(reply, "the last reply")
        else:
            self._hint("There is no reply to copy.")

    def action_thoughts(self) -> None:
        """Opens or folds what the model thought before its last reply."""
        reply = self.transcript.last_reply
        if reply is None or reply.thinking.empty:
            self._hint("The last reply has no thoughts.")
        else:
            reply.thinking.toggle()

    def _copy(self, said: Said, what: str) -> None:
        if isinstance(said, Question | Reply):
            self.app.copy_to_clipboard(clean(said.answer if isinstance(said, Reply) else said.text))
            self._hint(f"Copied {what}.")

    def action_copy_code(self, number: int) -> None:
        """Copies a code block of the selected reply."""
        selected = self.transcript.selected
        codes = selected.codes if isinstance(selected, Reply) else []
        if number <= len(codes):
            self._copy_code(codes[number - 1])
        else:
            self._hint(f"This message has no code block {number}.")

    def _copy_code(self, code: str) -> None:
        self.app.copy_to_clipboard(clean(code))
        self._hint("Copied the code.")

    def _question(self) -> Question | None:
        """The selected question, or that of the selected reply."""
        selected, said = self.transcript.selected, self.transcript.said
        above = said[: said.index(selected) + 1] if selected else []
        return next((message for message in reversed(above) if isinstance(message, Question)), None)
