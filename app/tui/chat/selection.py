"""Selects and copies messages of the chat, and switches branches."""

from textual import events

from slipstream.app.chats.messages import RemovedMessages
from slipstream.app.platform.safe_text import clean
from slipstream.app.tui.chat.attach import edited_outside
from slipstream.app.tui.chat.message import MessageView, Question, Summary
from slipstream.app.tui.chat.page import ChatPage
from slipstream.app.tui.chat.reply import ReplyView
from slipstream.models.errors import SlipstreamError


class Selection:
    """The selected message and the actions on it; ``MessageView`` binds the keys."""

    def __init__(self, page: ChatPage) -> None:
        self._page = page
        self._removed: RemovedMessages | None = None  # the message that was deleted last

    async def move(self, step: int) -> None:
        transcript = self._page.transcript
        selected, said = transcript.selected, transcript.said
        at = len(said) if selected is None else said.index(selected)
        if step > 0 and at + 1 >= len(said) and not transcript.whole:
            await self._page.show_more(later=True)
        if step < 0 and at == 0 and said:
            await self._page.show_more(later=False)
            at = transcript.said.index(said[0])
        said = transcript.said
        if step > 0 and at + 1 >= len(said):
            self.leave()
        elif said:
            self._select(said[max(at + step, 0)])

    def _select(self, said: MessageView) -> None:
        said.select()
        self._page.transcript.show_message(said)
        self._page.refresh_keys()

    def leave(self) -> None:
        self._page.screen.set_focus(self._page.prompt)
        if self._page.transcript.whole and self._page.transcript.is_vertical_scroll_end:
            self._page.transcript.to_end()

    def type(self, text: str, pasted: bool = False) -> None:
        self.leave()
        if pasted:
            self._page.prompt.post_message(events.Paste(text))
        else:
            self._page.prompt.insert(text)

    @property
    def message(self) -> int | None:
        selected = self._page.transcript.selected
        return selected.message if selected else None

    @property
    def question(self) -> Question | None:
        selected, said = self._page.transcript.selected, self._page.transcript.said
        above = said[: said.index(selected) + 1] if selected else []
        return next((message for message in reversed(above) if isinstance(message, Question)), None)

    @property
    def branches(self) -> bool:
        selected = self._page.transcript.selected
        return bool(selected and selected.beside)

    def edit(self) -> None:
        if question := self.question:
            self._page.edit(question)

    async def delete(self) -> None:
        selected, page = self._page.transcript.selected, self._page
        if selected is None:
            return
        said = page.transcript.said
        after = said[said.index(selected) + 1 :][:1] or said[: said.index(selected)][-1:]
        self._removed = page.conversation.remove(selected.message)
        await self._show_messages(after[0].message if after else None)
        page.hint("Deleted the message. u, or /undelete, brings it back.")

    async def undo_delete(self) -> bool:
        removed, self._removed = self._removed, None
        if removed is None or not self._page.conversation.put_back(removed):
            return False
        await self._show_messages(removed.message)
        self._page.hint("The message is back.")
        return True

    async def _show_messages(self, select: int | None) -> None:
        await self._page.go_to()
        shown = self._page.transcript.find(select) if select else None
        if shown:
            self._select(shown)
        else:
            self.leave()

    async def show_branch(self, step: int) -> None:
        page, selected = self._page, self._page.transcript.selected
        other = selected.neighbour(step) if selected else None
        if other is None:
            return
        try:
            page.conversation.show(other)
            await page.go_to(other)
        except SlipstreamError as error:
            await page.notice(error)
            return
        if shown := page.transcript.find(other):
            self._select(shown)

    def copy(self) -> None:
        if selected := self._page.transcript.selected:
            self._copy(selected, "the message")

    def copy_reply(self) -> None:
        reply = self._page.transcript.last_reply
        if reply and reply.text:
            self._copy(reply, "the last reply")
        else:
            self._page.hint("There is no reply to copy.")

    def copy_code(self, number: int) -> None:
        selected = self._page.transcript.selected
        codes = selected.markdown.codes if isinstance(selected, ReplyView) else []
        if number <= len(codes):
            self.take_code(codes[number - 1])
        else:
            self._page.hint(f"This message has no code block {number}.")

    def take_code(self, code: str) -> None:
        self._page.screen.app.copy_to_clipboard(clean(code))
        self._page.hint("Copied the code.")

    def _copy(self, said: MessageView, what: str) -> None:
        if isinstance(said, Question | ReplyView | Summary):
            self._page.screen.app.copy_to_clipboard(clean(said.answer if isinstance(said, ReplyView) else said.text))
            self._page.hint(f"Copied {what}.")

    def open_in_editor(self) -> None:
        """Opens the selected message in the user's editor, to read it; without one the prompt, to write it."""
        page, selected = self._page, self._page.transcript.selected
        if isinstance(selected, Question | ReplyView | Summary):
            edited_outside(page.screen.app, selected.answer if isinstance(selected, ReplyView) else selected.text)
        else:
            page.prompt.put_message(edited_outside(page.screen.app, page.prompt.message))

    def fold_reasoning(self) -> None:
        reply = self._page.transcript.last_reply
        if reply is None or reply.thinking.empty:
            self._page.hint("The last reply has no thoughts.")
        else:
            reply.thinking.toggle()
