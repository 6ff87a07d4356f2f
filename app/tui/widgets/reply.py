"""What the model said."""

from __future__ import annotations

from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.widget import AwaitMount, Widget
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from slipstream.app.engine.protocol import Piece, Prefilling, Speed
from slipstream.app.engine.thinking import Thinking, begins_inside, split
from slipstream.app.safe_text import clean
from slipstream.app.tui.figures import bar
from slipstream.app.tui.widgets.fence import Fence
from slipstream.app.tui.widgets.pieces import Pieces
from slipstream.app.tui.widgets.said import CODE_KEYS, Said
from slipstream.app.tui.widgets.thinking import ThinkingView


def parser() -> MarkdownIt:
    """Reads Markdown so that nothing the model wrote is lost: HTML is text, and a line ends where it ended."""
    markdown = MarkdownIt("gfm-like", {"html": False})
    markdown.core.ruler.push("line_ends", _keep_line_ends)
    markdown.core.ruler.push("inert", _clean)
    return markdown


def _keep_line_ends(state: StateCore) -> None:
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def _clean(state: StateCore) -> None:
    """Cleans once more: ``&#x202E;`` has become a character by now, and pieces that were cleaned apart are together."""
    tokens = list(state.tokens)
    while tokens:
        token = tokens.pop()
        token.content = clean(token.content)
        token.attrs = {name: clean(value) if isinstance(value, str) else value for name, value in token.attrs.items()}
        tokens += token.children or ()


class ReplyText(Markdown):
    """Markdown with our code blocks; the last block has the class "last"."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}

    def mount(
        self, *widgets: Widget, before: int | str | Widget | None = None, after: int | str | Widget | None = None
    ) -> AwaitMount:
        """Adds blocks; ":last-child" in a style sheet would have all blocks styled anew for each that comes."""
        for block in self.query_children(".last"):
            block.remove_class("last")
        if widgets:
            widgets[-1].add_class("last")
        return super().mount(*widgets, before=before, after=after)


class Reply(Said):
    """A reply as Markdown, or as pieces in colours, and a line about it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "thoughts", "Thoughts")]

    def __init__(self, message: int, text: str = "", footnote: str = "", speed: Speed | None = None) -> None:
        """Makes a reply.

        Args:
            message: Its number in the store.
            text: Its text so far.
            footnote: The line under it.
            speed: Its figures so far.
        """
        super().__init__(message)
        self.text = text
        """The text as the model wrote it, thoughts included."""
        self._thought, self._thought_ms = (speed.thought, speed.thought_ms) if speed else (0, 0.0)
        self._opened = begins_inside(text, self._thought)
        self._mind = Thinking(self._opened)
        self._mind.feed(text)
        parts = split(text, self._opened)
        self.thinking = ThinkingView()
        """What it thought."""
        self.thinking.think(parts.thoughts, self._thought, self._thought_ms, False)
        if text and not parts.answer:
            self.thinking.open()
        self._markdown = ReplyText(clean(parts.answer), parser_factory=parser, open_links=False)
        self._pieces = Pieces()
        self._note = Content(clean(footnote))
        self._footnote = Static(self._note, classes="footnote")
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        """The thoughts, the two views of the answer, and the line."""
        yield self.thinking
        yield self._markdown
        yield self._pieces
        yield self._footnote

    def prefilling(self, event: Prefilling) -> None:
        """Shows how far the prompt is read."""
        done, rest = bar(event.done / max(event.total, 1), 24)
        text = f"reading  {done}{rest}  {event.done:,} of {event.total:,} tokens"
        self._note = Content(text, [Span(9, 9 + len(done), "$primary")])
        self.show_fork()

    async def write(self, pieces: list[Piece], speed: Speed | None = None) -> None:
        """Adds to the reply.

        Args:
            pieces: The new text.
            speed: The figures of all that was written since it began, or went on.
        """
        text = "".join(piece.text for piece in pieces)
        if not text:
            return
        if self._stream is None:
            self._stream = Markdown.get_stream(self._markdown)
            self.note("writing · Esc stops")
        if not self.text:
            self._opened = begins_inside(text, speed.thought if speed else 0)
            self._mind = Thinking(self._opened)
        self.text += text
        fed = [(self._mind.feed(piece.text), piece) for piece in pieces]
        thoughts = "".join(thought for (thought, _), _ in fed)
        if thoughts or self._mind.under_way or self.thinking.under_way:
            self._think(thoughts, speed, self._mind.under_way)
        await self._answer([Piece(answer, piece.origin, piece.source) for (_, answer), piece in fed if answer])

    def _think(self, thoughts: str, speed: Speed | None, under_way: bool) -> None:
        thought, milliseconds = (speed.thought, speed.thought_ms) if speed else (0, 0.0)
        self.thinking.think(thoughts, self._thought + thought, self._thought_ms + milliseconds, under_way)

    async def _answer(self, pieces: list[Piece]) -> None:
        if not pieces:
            return
        self._pieces.add(pieces)
        if self.has_class("coloured"):
            self._pieces.draw()
        if self._stream:
            await self._stream.write(clean("".join(piece.text for piece in pieces)))

    async def finish(self, footnote: str, text: str | None = None, speed: Speed | None = None) -> None:
        """Ends the reply.

        Args:
            footnote: The line under it.
            text: The whole reply, if it differs from what came; None keeps that.
            speed: See ``write``.
        """
        thoughts, answer = self._mind.finish()
        if thoughts or not self.thinking.empty:
            self._think(thoughts, speed, False)
        await self._answer([Piece(answer, "plain")] if answer else [])
        stream, self._stream = self._stream, None
        if stream:
            await stream.stop()
        if text is not None and text != self.text:
            self.text = text
            await self._markdown.update(clean(self.answer))
        if not self.thinking.empty and not self.answer:
            self.thinking.open()
        self.note(footnote)

    def note(self, footnote: str) -> None:
        """Changes the line under the reply."""
        self._note = Content(clean(footnote))
        self.show_fork()

    def show_fork(self) -> None:
        """Draws the line under the reply again."""
        label = self.fork_label()
        self._footnote.update(label.append(Content("  ")).append(self._note) if self.beside else self._note)

    def resume(self) -> None:
        """Goes on behind the text there is."""
        self._thought, self._thought_ms = self.thinking.tokens, self.thinking.milliseconds
        if self.thinking.opened and not self.answer:
            self.thinking.toggle()
        if self._pieces.empty and self.answer:
            self._pieces.add([Piece(self.answer, "plain")])

    @property
    def answer(self) -> str:
        """The text without what it thought."""
        return split(self.text, self._opened).answer

    def action_thoughts(self) -> None:
        """Opens or folds what it thought."""
        self.thinking.toggle()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers thoughts where there are any."""
        return not self.thinking.empty if action == "thoughts" else True

    @property
    def fences(self) -> list[Fence]:
        """Its code blocks from top to bottom."""
        return list(self.query(Fence))

    def on_focus(self) -> None:
        """Says which key copies which code block."""
        for number, fence in enumerate(self.fences, 1):
            fence.number(number if number in CODE_KEYS else None)

    def on_blur(self) -> None:
        """It is not selected any more; the keys mean nothing now."""
        for fence in self.fences:
            fence.number(None)

    def colour(self, on: bool) -> None:
        """Shows the pieces, where there are any, or the Markdown."""
        self.set_class(on and (self._stream is not None or not self._pieces.empty or not self.text), "coloured")
        self._pieces.draw()

    @property
    def coloured(self) -> bool:
        """Whether the pieces are shown."""
        return self.has_class("coloured")
