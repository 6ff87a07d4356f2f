"""Lines of the transcript that say what is not in it."""

from __future__ import annotations

from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from slipstream.app.tui.figures import plural


class Earlier(Static):
    """Says how many messages lie above; a click brings some."""

    class Wanted(Message):
        """The user wants to see older messages."""

    def show(self, count: int) -> None:
        """Says how many there are."""
        self.display = count > 0
        self.update(Content(f"▲ {plural(count, 'earlier message')}"))

    def on_click(self) -> None:
        """Asks for some."""
        self.post_message(self.Wanted())


class Later(Static):
    """Says how many messages lie below, where an old place of a long chat is shown; a click brings some."""

    class Wanted(Message):
        """The user wants to see newer messages."""

    def show(self, count: int) -> None:
        """Says how many there are."""
        self.display = count > 0
        self.update(Content(f"▼ {plural(count, 'later message')}"))

    def on_click(self) -> None:
        """Asks for some."""
        self.post_message(self.Wanted())


class Forgotten(Static):
    """Stands where the model begins to read: what is above it no longer fits the context."""

    def __init__(self, messages: int, tokens: int) -> None:
        """Makes the line.

        Args:
            messages: How many were left out.
            tokens: How many tokens left with them; 0 where nobody counted.
        """
        counts = ", ".join([plural(messages, "message"), *([plural(tokens, "token")] if tokens else [])])
        super().__init__(Content(f"▲ above this line the model no longer reads: {counts}"))
