"""A reply of the model, with its reasoning folded to one line."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content, Span
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.chats.reasoning import begins_inside, divided, split
from slipstream.app.chats.records import Run
from slipstream.app.platform.safe_text import clean, one_line, plural
from slipstream.app.protocol.events import Divided, Piece, Prefilling
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.commands import CommandRequest
from slipstream.app.tui.chat.message import MessageView
from slipstream.app.tui.chat.reply_text import FenceHead, ReplyText
from slipstream.app.tui.parts.format import NO_ANSWER, bar, spent
from slipstream.app.tui.parts.long_column import LongColumn, Part

CHUNK = 1500  # characters after which the next line end begins a new widget, so that a step redraws only the last one
LINE = 4 * CHUNK  # characters after which a new widget begins even without a line end
LAST_WORDS = 400  # characters kept for the preview of the newest thoughts


class ReplyView(MessageView):
    """A reply: reasoning, answer as Markdown, and a footnote."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("t", "thoughts", "Thoughts")]

    def __init__(
        self, message: int, text: str = "", footnote: str = "", speed: Speed | None = None, origins: Sequence[Run] = ()
    ) -> None:
        super().__init__(message)
        self._text = [text]
        self._thought, self._thought_ms = (speed.thought, speed.thought_ms) if speed else (0, 0.0)
        self._opened = begins_inside(text, self._thought)
        parts = split(text, self._opened)
        self._shown = tuple(map(len, divided(text, self._opened)))  # numbers of shown characters: reasoning, answer
        self.thinking = ThinkingView()  # shows the reasoning
        self.thinking.think(parts.thoughts, self._thought, self._thought_ms, False)
        self.markdown = ReplyText(_answer_pieces(text, parts.answer, origins))
        self._known = bool(origins) or not text  # whether the source of each word is known
        self._note = Content(clean(self._said_of(footnote, parts.answer)))
        self._footnote = Static(self._note, classes="footnote")
        self._writing = False

    def compose(self) -> ComposeResult:
        yield self.thinking
        yield self.markdown
        yield self._footnote

    @property
    def text(self) -> str:
        self._text = ["".join(self._text)]
        return self._text[0]

    @property
    def columns(self) -> list[LongColumn]:
        return [column for column in (self.thinking.body, self.markdown) if column.display]

    def prefilling(self, event: Prefilling) -> None:
        done, rest = bar(event.done / max(event.total, 1), 24)
        text = f"reading  {done}{rest}  {event.done:,} of {event.total:,} tokens"
        self._note = Content(text, [Span(9, 9 + len(done), "$primary")])
        self.show_fork()

    def write(self, pieces: list[Piece], speed: Speed | None = None, parts: Divided | None = None) -> None:
        """Appends to the reply; ``speed`` has the figures since it began or was continued."""
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
            self.markdown.write(pieces)

    async def finish(self, footnote: str, text: str | None = None, speed: Speed | None = None) -> None:
        """Ends the reply; ``text`` is the whole of it, if it may differ from the streamed text."""
        # what was held back as a possible reasoning mark
        both = zip(divided(self.text, self._opened), self._shown, strict=True)
        thoughts, answer = (part[shown:] for part, shown in both)
        if thoughts or not self.thinking.empty:
            self._think(thoughts, speed, False)
        self._answer([Piece(answer, "plain")] if answer else [])
        self._writing = False
        if text is not None and text != self.text:
            self._text = [text]
            await self.markdown.replace(self.answer)
        for column in self.columns:
            await column.draw()
        self.note(self._said_of(footnote, self.answer))

    def _said_of(self, footnote: str, answer: str) -> str:
        """The footnote of the finished reply; thoughts without an answer are opened, and it says that they are all."""
        if self.thinking.empty or answer:
            return footnote
        self.thinking.open()
        return " · ".join(filter(None, (footnote, NO_ANSWER)))

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
        return split(self.text, self._opened).answer

    def action_thoughts(self) -> None:
        self.thinking.toggle()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.thinking.empty if action == "thoughts" else True

    def on_fence_head_copy_click(self, event: FenceHead.CopyClick) -> None:
        event.stop()
        self.post_message(CommandRequest("take-code", (self.markdown.code_of(event.fence),)))

    def on_focus(self) -> None:
        self.markdown.number(True)

    def on_blur(self) -> None:
        """Hides the key numbers of the code blocks. Textual also calls ``MessageView.on_blur``."""
        self.markdown.number(False)

    @property
    def coloured(self) -> bool:
        return self.markdown.coloured

    def colour(self, on: bool) -> None:
        self.markdown.colour(on and self._known)


def _answer_pieces(text: str, answer: str, origins: Sequence[Run]) -> list[Piece]:
    if not text.endswith(answer):
        return [Piece(answer, "plain")]
    at, begins, pieces = 0, len(text) - len(answer), list[Piece]()
    for size, origin, source in origins:
        if part := text[max(at, begins) : at + size]:
            pieces.append(Piece(part, origin, source))
        at += size
    return [*pieces, Piece(text[max(at, begins) :], "plain")]


class _Chunk(Part):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def make(self) -> Static:
        return Static(Content(self.text))

    async def draw(self) -> None:
        if isinstance(self.widget, Static):
            self.widget.update(Content(self.text))

    def guess(self, width: int) -> int:
        return sum(max(-(-cell_len(line) // width), 1) for line in self.text.split("\n"))


class PlainColumn(LongColumn):
    """Shows plain text; hidden at first."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False

    @property
    def empty(self) -> bool:
        return not self.parts

    def add(self, text: str) -> None:
        text = clean(text).replace("\t", "    ")
        last = self.parts[-1] if self.parts else None
        if not isinstance(last, _Chunk):
            last = self._begin()
        while text:
            cut = text.find("\n", max(CHUNK - len(last.text), 0))
            skip = 1
            if cut < 0 and len(last.text) + len(text) > LINE:
                cut, skip = LINE - len(last.text), 0
            if cut < 0:
                last.text += text
                break
            last.text += text[:cut]
            text = text[cut + skip :]
            last = self._begin()
        self.soon()

    def _begin(self) -> _Chunk:
        chunk = _Chunk()
        self.parts.append(chunk)
        return chunk


class ThinkingHead(Widget):
    """The head line: duration, and a preview of the newest thoughts. A click folds or unfolds them."""

    def __init__(self) -> None:
        super().__init__()
        self._words = self._last = ""

    def show(self, words: str, last: str = "") -> None:
        if (words, last) != (self._words, self._last):
            self._words, self._last = words, last
            self.refresh()

    def render(self) -> Content:
        line = Content(self._words)
        if self._last:
            room = self.size.width - line.cell_length - 3
            words = Content(one_line(self._last))
            while room > 12 and words.cell_length > room:  # drops the oldest words
                words = Content("…" + words.plain[max(words.cell_length - room, 1) + 1 :])
            line = line.append(Content(" · ").append(words).stylize("italic")) if room > 12 else line
        return line.truncate(max(self.size.width, 1), ellipsis=True)


class ThinkingView(Vertical):
    """The reasoning of one reply; hidden if there is none."""

    def __init__(self) -> None:
        super().__init__()
        self._head = ThinkingHead()
        self.body = PlainColumn()  # the unfolded thoughts
        self._end = self._space = ""  # the last characters, and trailing white space
        self.tokens, self.milliseconds = 0, 0.0  # tokens and duration of all thoughts
        self.under_way = False  # whether more thoughts follow
        self.opened = False  # whether the thoughts are unfolded

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.body

    def on_mount(self) -> None:
        self._draw()

    @property
    def empty(self) -> bool:
        return self.body.empty

    def think(self, text: str, tokens: int, milliseconds: float, under_way: bool) -> None:
        """Adds thoughts; ``tokens`` counts those of all thoughts, or is 0 if they were not counted."""
        text = self._space + text if not self.body.empty else text.lstrip()
        words = text.rstrip()
        self._space = text[len(words) :]  # shown once text follows
        if words:
            self.body.add(words)
            self._end = (self._end + words)[-LAST_WORDS:]
        self.tokens, self.milliseconds, self.under_way = tokens, milliseconds, under_way
        if self.is_attached:
            self._draw()

    def open(self) -> None:
        self.opened = True
        if self.is_attached:
            self._draw()

    def toggle(self) -> None:
        self.opened = not self.opened
        self._draw()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._head:
            self.toggle()

    def _draw(self) -> None:
        self.display = not self.empty or self.under_way
        seen = self.opened and not self.empty
        if seen != self.body.display:
            self.body.see(seen)
        if not self.display:
            return
        spent_words = [spent(self.milliseconds)] if self.milliseconds else []
        spent_words += [plural(self.tokens, "token")] if self.tokens else []
        mark = "▾" if self.opened else "▸"
        if self.under_way:
            self._head.show(f"{mark} thinking  {' · '.join(spent_words)}".rstrip(), "" if self.opened else self._end)
        elif spent_words:
            self._head.show(f"{mark} thought {'for ' if self.milliseconds else ''}{', '.join(spent_words)}")
        else:
            self._head.show(f"{mark} thoughts")
