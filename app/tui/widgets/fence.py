"""A code block that says its language and can be copied."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widgets import Static
from textual.widgets._markdown import MarkdownFence

from slipstream.app.safe_text import one_line


class FenceHead(Static):
    """The line above the code; a click copies."""

    @dataclass
    class Clicked(Message):
        """The user wants the code."""

        fence: Fence

    def on_click(self) -> None:
        """Says so."""
        if isinstance(self.parent, Fence):
            self.post_message(self.Clicked(self.parent))


class Fence(MarkdownFence):
    """A code block of a reply; one with the class "rest" goes on with the block above."""

    def compose(self) -> ComposeResult:
        """Its language and its code."""
        yield FenceHead(self._head())
        yield from super().compose()

    def number(self, number: int | None) -> None:
        """Says which key copies it while its reply is selected."""
        for head in self.query(FenceHead):
            head.update(self._head(number))

    def _head(self, number: int | None = None) -> Content:
        language = one_line(self.lexer).split(" ")[0][:20] or "text"
        copy = f"copy: {number}" if number else "copy"
        return Content.assemble((language, "$foreground 60%"), (f"  ·  {copy}", "$secondary 80%"))
