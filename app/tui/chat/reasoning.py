"""The reasoning of a reply, folded to one line."""

from __future__ import annotations

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from slipstream.app.platform.safe_text import clean, one_line, plural
from slipstream.app.tui.parts.format import spent
from slipstream.app.tui.parts.long_column import LongColumn, Part

CHUNK = 1500
"""Characters after which the next line end begins a new widget, so that a step redraws only the last one."""
LINE = 4 * CHUNK
"""Characters after which a new widget begins even without a line end."""


class _Chunk(Part):
    """The text of one widget."""

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


LAST_WORDS = 400  # characters kept for the preview of the newest thoughts


class ThinkingHead(Widget):
    """The head line: duration, and a preview of the newest thoughts. A click folds or unfolds them."""

    class Clicked(Message):
        """The user clicked the line."""

    def __init__(self) -> None:
        super().__init__()
        self._words = self._last = ""

    def show(self, words: str, last: str = "") -> None:
        """Updates the line.

        Args:
            last: The newest thoughts, shown if there is room; empty once the answer begins.
        """
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

    def on_click(self) -> None:
        self.post_message(self.Clicked())


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
        """Whether there is nothing to open."""
        return self.body.empty

    def think(self, text: str, tokens: int, milliseconds: float, under_way: bool) -> None:
        """Adds thoughts.

        Args:
            tokens: Number of tokens of all thoughts; 0 if they were not counted.
        """
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

    def on_thinking_head_clicked(self, event: ThinkingHead.Clicked) -> None:
        event.stop()
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
