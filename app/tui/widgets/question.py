"""What the user said."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from slipstream.app.safe_text import clean


class Question(Static):
    """A message of the user, as it was typed."""

    def __init__(self, message: int, text: str) -> None:
        """Keeps the message's number in the store, and shows its text."""
        super().__init__(Content(clean(text).expandtabs(4)))
        self.message = message
