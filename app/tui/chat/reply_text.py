"""Shows the answer of a reply as Markdown, one widget per passage; words can be styled by their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widget import AwaitMount, Widget
from textual.widgets import Markdown, Static, _markdown

from slipstream.app.platform.safe_text import clean, one_line, shortened
from slipstream.app.protocol.events import Piece
from slipstream.app.tui.chat.authorship import Painter, Sources, style_of
from slipstream.app.tui.chat.markdown_chunks import Passage, Passages, last_block, parser
from slipstream.app.tui.chat.message import CODE_KEYS
from slipstream.app.tui.parts.long_column import LongColumn, Part


class FenceHead(Static):
    """The line above the code; a click copies the code. ``Painter`` skips widgets with its class "head"."""

    @dataclass
    class CopyClick(Message):
        """The user wants to copy the code."""

        fence: Fence

    def on_click(self) -> None:
        if isinstance(self.parent, Fence):
            self.post_message(self.CopyClick(self.parent))


class Fence(_markdown.MarkdownFence):
    """A code block of a reply; with the class "rest", it continues the block above."""

    def compose(self) -> ComposeResult:
        yield FenceHead(self._head(), classes="head")
        yield from super().compose()

    def number(self, number: int | None) -> None:
        for head in self.query(FenceHead):
            head.update(self._head(number))

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        name = re.split(r"[\s:{,]", language)[0] or "text"  # a guessed language is often wrong
        return super().highlight(code, name, ansi, dark)

    def _head(self, number: int | None = None) -> Content:
        language = shortened(one_line(self.lexer).strip(), 48) or "text"
        copy = f"copy: {number}" if number else "copy"
        return Content.assemble((language, "$foreground 60%"), (f"  ·  {copy}", "$secondary 80%"))


class TableCells(_markdown.MarkdownTableContent):
    """The cells of a table, aligned as its columns say."""

    def __init__(self, headers: list[Content], rows: list[list[Content]], ways: list[Any]) -> None:
        super().__init__(headers, rows)
        self._ways = ways  # the alignment of each column

    def compose(self) -> ComposeResult:
        yield from self._aligned(super().compose())

    def mount_all(self, widgets: Iterable[Widget], **place: Any) -> AwaitMount:
        return super().mount_all(self._aligned(widgets), **place)

    def _aligned(self, cells: Iterable[Widget]) -> Iterator[Widget]:
        for at, cell in enumerate(cells):
            cell.styles.text_align = self._ways[at % len(self._ways)]
            yield cell


class Table(_markdown.MarkdownTable):
    """A table with aligned columns."""

    def compose(self) -> ComposeResult:
        row = self._blocks[0]._blocks[0]._blocks  # the cells of the head
        ways = [str(cell._token.attrs.get("style", "")).removeprefix("text-align:") or "left" for cell in row]
        for cells in super().compose():
            yield (
                TableCells(cells.headers, cells.rows, ways)
                if isinstance(cells, _markdown.MarkdownTableContent)
                else cells
            )


class Numbered(_markdown.MarkdownOrderedList):
    """A list with the numbers that the model wrote; one that repeats a number is counted on, as in Markdown."""

    def compose(self) -> ComposeResult:
        written = [int(item._token.info) for item in self._blocks]
        numbers = written if len(set(written)) == len(written) else range(written[0], written[0] + len(written))
        symbols = [f"{number}{item._token.markup} " for number, item in zip(numbers, self._blocks, strict=True)]
        for symbol, item in zip(symbols, self._blocks, strict=True):
            bullet = _markdown.MarkdownBullet()
            bullet.symbol = symbol.rjust(max(map(len, symbols)) + 1)
            yield Horizontal(bullet, Vertical(*item._blocks))
        self._blocks.clear()


class PassageView(Markdown):
    """A passage whose code blocks are ``Fence``; its last block has the class "last"."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence, "table_open": Table, "ordered_list_open": Numbered}

    def __init__(self, passage: Passage, start: int, sources: Sources) -> None:
        super().__init__(passage.source, parser_factory=lambda: parser(sources.formulas), open_links=False)
        self._passage, self._start, self._painter = passage, start, Painter(sources)

    def paint(self) -> None:
        self._painter.paint(self, self.source, self._start - len(self._passage.opening))

    def mount(
        self, *widgets: Widget, before: int | str | Widget | None = None, after: int | str | Widget | None = None
    ) -> AwaitMount:
        """Adds blocks and marks the last; with ":last-child", each new block would restyle all blocks."""
        if widgets and not self.children and isinstance(widgets[0], Fence) and self._passage.goes_on:
            widgets[0].add_class("rest")
        for block in self.query_children(".last"):
            block.remove_class("last")
        if widgets:
            widgets[-1].add_class("last")
        return super().mount(*widgets, before=before, after=after)

    def update(self, markdown: str) -> AwaitComplete:
        """Shows another text; text that is appended later continues its last block, not its last line."""
        updated = super().update(markdown)

        async def update() -> None:
            await updated
            self._last_parsed_line = last_block(markdown)
            self.paint()

        return AwaitComplete(update())

    async def draw(self) -> None:
        source = self._passage.source
        if source.startswith(self.source):
            if new := source[len(self.source) :]:
                await self.append(new)
                self.paint()
        else:
            await self.update(source)


class _Stretch(Part):
    def __init__(self, passage: Passage, ends: bool, start: int, sources: Sources) -> None:
        super().__init__()
        self.passage, self.start = passage, start
        self._sources = sources
        self._ends = ends  # whether no line is left free below

    def make(self) -> PassageView:
        view = PassageView(self.passage, self.start, self._sources)
        view.set_class(self._ends, "ends")
        return view

    async def draw(self) -> None:
        if isinstance(self.widget, PassageView):
            self.widget.set_class(self._ends, "ends")
            await self.widget.draw()

    def ends(self, ends: bool) -> None:
        """Sets whether no line is left free below: it is the last passage, or the next continues its last block."""
        self._ends = ends

    def guess(self, width: int) -> int:
        lines = self.passage.text.rstrip("\n").split("\n")
        taken = sum(max(-(-(len(line) if line.isascii() else cell_len(line)) // width), 1) for line in lines)
        return max(taken + (not self._ends), 1)


class ReplyText(LongColumn):
    """An answer of any length; its words can be styled by their sources."""

    def __init__(self, pieces: Sequence[Piece] = ()) -> None:
        super().__init__()
        self._passages = Passages()
        self._sources = Sources()
        self._numbered = False
        self._take(pieces)

    @property
    def coloured(self) -> bool:
        return self._sources.on

    def write(self, pieces: Sequence[Piece]) -> None:
        self._take(pieces)
        self.soon()

    async def replace(self, text: str) -> None:
        self._passages = Passages()
        self._sources.clear()
        self.parts = []
        self._take([Piece(text, "plain")])
        await self.fill(self.parts)

    def colour(self, on: bool) -> None:
        self._sources.on = on
        for part in self.parts:
            if isinstance(part.widget, PassageView):
                part.widget.paint()

    def show_formulas(self, on: bool) -> None:
        if on == self._sources.formulas:
            return
        self._sources.formulas = on
        for part in self.parts:
            if isinstance(part.widget, PassageView):
                part.widget.update(part.widget.source)

    def _take(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._sources.add(len(piece.text), style_of(piece))
        self._passages.add(clean("".join(piece.text for piece in pieces)))
        self._divide()

    def _divide(self) -> None:
        if self.parts:
            last, at = self.parts[-1], len(self.parts)
            assert isinstance(last, _Stretch)
            last.ends(at == len(self._passages) or self._passages[at].goes_on)
        for place in range(len(self.parts), len(self._passages)):
            ends = place + 1 == len(self._passages) or self._passages[place + 1].goes_on
            before = self.parts[-1] if self.parts else None
            start = before.start + len(before.passage.text) if isinstance(before, _Stretch) else 0
            self.parts.append(_Stretch(self._passages[place], ends, start, self._sources))

    @property
    def codes(self) -> list[str]:
        return self._passages.codes()

    def code_of(self, fence: Fence) -> str:
        """The whole code of a block, of which only a part may be mounted."""
        return self.codes[self._numbers()[fence] - 1]

    def number(self, on: bool) -> None:
        self._numbered = on
        numbers = self._numbers() if on else {}
        for fence in self.query(Fence):
            number = numbers.get(fence)
            fence.number(number if number in CODE_KEYS else None)

    def _numbers(self) -> dict[Fence, int]:
        numbers: dict[Fence, int] = {}
        count = 0
        for place, part in enumerate(self.parts):
            passage = self._passages[place]
            count -= passage.goes_on_in_code
            if part.widget is not None:
                numbers |= {fence: count + at for at, fence in enumerate(part.widget.query(Fence), 1)}
            count += len(passage.codes())
        return numbers

    async def _show(self, first: int, end: int) -> None:
        await super()._show(first, end)
        if self._numbered:
            self.number(True)
