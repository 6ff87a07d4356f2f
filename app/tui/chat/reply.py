"""A reply of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.message import Message
from textual.widgets import Static

from slipstream.app.chats.reasoning import begins_inside, divided, split
from slipstream.app.chats.records import Run
from slipstream.app.platform.safe_text import clean
from slipstream.app.protocol.events import Divided, Piece, Prefilling
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.message import Said
from slipstream.app.tui.chat.reasoning import ThinkingView
from slipstream.app.tui.chat.reply_text import FenceHead, ReplyText
from slipstream.app.tui.parts.format import bar
from slipstream.app.tui.parts.long_column import LongColumn


class Reply(Said):
    """A reply: reasoning, answer as Markdown, and a footnote."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "thoughts", "Thoughts")]

    @dataclass
    class CodeWanted(Message):
        """The user wants to copy a code block."""

        code: str

    def __init__(
        self,
        message: int,
        text: str = "",
        footnote: str = "",
        speed: Speed | None = None,
        origins: Sequence[Run] = (),
    ) -> None:
        """Makes a reply.

        Args:
            origins: Sources of the characters, see ``Figures.origins``.
        """
        super().__init__(message)
        self._text = [text]
        self._thought, self._thought_ms = (speed.thought, speed.thought_ms) if speed else (0, 0.0)
        self._opened = begins_inside(text, self._thought)
        parts = split(text, self._opened)
        self._shown = tuple(map(len, divided(text, self._opened)))  # numbers of shown characters: reasoning, answer
        self.thinking = ThinkingView()  # shows the reasoning
        self.thinking.think(parts.thoughts, self._thought, self._thought_ms, False)
        if text and not parts.answer:
            self.thinking.open()
        self._markdown = ReplyText(_answer_pieces(text, parts.answer, origins))
        self._known = bool(origins) or not text  # whether the source of each word is known
        self._note = Content(clean(footnote))
        self._footnote = Static(self._note, classes="footnote")
        self._writing = False

    def compose(self) -> ComposeResult:
        yield self.thinking
        yield self._markdown
        yield self._footnote

    @property
    def text(self) -> str:
        """The whole text of the model, including its reasoning."""
        self._text = ["".join(self._text)]
        return self._text[0]

    @property
    def columns(self) -> list[LongColumn]:
        """The visible columns: reasoning and answer."""
        return [column for column in (self.thinking.body, self._markdown) if column.display]

    def prefilling(self, event: Prefilling) -> None:
        done, rest = bar(event.done / max(event.total, 1), 24)
        text = f"reading  {done}{rest}  {event.done:,} of {event.total:,} tokens"
        self._note = Content(text, [Span(9, 9 + len(done), "$primary")])
        self.show_fork()

    def write(self, pieces: list[Piece], speed: Speed | None = None, parts: Divided | None = None) -> None:
        """Appends to the reply.

        Args:
            speed: The figures since the reply began or was continued.
            parts: The text divided into reasoning and answer; None if all of it is the answer.
        """
        text = "".join(piece.text for piece in pieces)
        if not text:
            return
        if not self._writing:
            self._writing = True
            self.note("writing · Esc stops")
        if not any(self._text):
            self._opened = begins_inside(text, speed.thought if speed else 0)
        self._text.append(text)
        if parts and (parts.reasoning or parts.under_way or self.thinking.under_way):
            self._think(parts.reasoning, speed, parts.under_way)
        self._answer(parts.answer if parts else pieces)

    def _think(self, thoughts: str, speed: Speed | None, under_way: bool) -> None:
        self._shown = (self._shown[0] + len(thoughts), self._shown[1])
        thought, milliseconds = (speed.thought, speed.thought_ms) if speed else (0, 0.0)
        self.thinking.think(thoughts, self._thought + thought, self._thought_ms + milliseconds, under_way)

    def _answer(self, pieces: list[Piece]) -> None:
        if pieces:
            text = "".join(piece.text for piece in pieces)
            self._shown = (self._shown[0], self._shown[1] + len(text))
            self._markdown.write(pieces)

    async def finish(self, footnote: str, text: str | None = None, speed: Speed | None = None) -> None:
        """Ends the reply.

        Args:
            text: The whole reply, if it differs from the streamed text; None keeps the streamed text.
            speed: See ``write``.
        """
        thoughts, answer = divided(self.text, self._opened)
        thoughts, answer = (
            thoughts[self._shown[0] :],
            answer[self._shown[1] :],
        )  # held back as a possible reasoning mark
        if thoughts or not self.thinking.empty:
            self._think(thoughts, speed, False)
        self._answer([Piece(answer, "plain")] if answer else [])
        self._writing = False
        if text is not None and text != self.text:
            self._text = [text]
            await self._markdown.replace(self.answer)
        for column in self.columns:
            await column.draw()
        if not self.thinking.empty and not self.answer:
            self.thinking.open()
        self.note(footnote)

    def note(self, footnote: str) -> None:
        self._note = Content(clean(footnote))
        self.show_fork()

    def show_fork(self) -> None:
        label = self.fork_label()
        self._footnote.update(label.append(Content("  ")).append(self._note) if self.beside else self._note)

    def resume(self) -> None:
        self._thought, self._thought_ms = self.thinking.tokens, self.thinking.milliseconds
        if self.thinking.opened and not self.answer:
            self.thinking.toggle()
        self._known = True

    @property
    def answer(self) -> str:
        """The text without its reasoning."""
        return split(self.text, self._opened).answer

    def action_thoughts(self) -> None:
        self.thinking.toggle()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.thinking.empty if action == "thoughts" else True

    @property
    def codes(self) -> list[str]:
        return self._markdown.codes

    def on_fence_head_clicked(self, event: FenceHead.Clicked) -> None:
        """Posts the whole code of the block, of which only a part may be mounted."""
        event.stop()
        self.post_message(self.CodeWanted(self._markdown.code_of(event.fence)))

    def on_focus(self) -> None:
        self._markdown.number(True)

    def on_blur(self) -> None:
        """Hides the key numbers of the code blocks. Textual also calls ``Said.on_blur``."""
        self._markdown.number(False)

    def colour(self, on: bool) -> None:
        """Shows or hides the source of each word, if it is known."""
        self._markdown.colour(on and self._known)

    def show_formulas(self, on: bool) -> None:
        """Shows formulas in Unicode, or as they were written."""
        self._markdown.show_formulas(on)

    @property
    def coloured(self) -> bool:
        """Whether the source of each word is shown."""
        return self._markdown.coloured


def _answer_pieces(text: str, answer: str, origins: Sequence[Run]) -> list[Piece]:
    """Splits the answer into pieces by source.

    Args:
        text: The whole reply, including its reasoning.
        answer: The answer, usually the end of ``text``.
        origins: Sources of the characters of the whole reply.
    """
    if not text.endswith(answer):
        return [Piece(answer, "plain")]
    at, begins, pieces = 0, len(text) - len(answer), list[Piece]()
    for size, origin, source in origins:
        if part := text[max(at, begins) : at + size]:
            pieces.append(Piece(part, origin, source))
        at += size
    return [*pieces, Piece(text[max(at, begins) :], "plain")]
