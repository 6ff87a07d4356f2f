"""What the user said."""

from __future__ import annotations

from textual.content import Content

from slipstream.app.safe_text import clean
from slipstream.app.tui.widgets.said import Said


class Question(Said):
    """A message of the user, as it was typed."""

    def __init__(self, message: int, text: str) -> None:
        """Keeps the message's number in the store, and its text."""
        super().__init__(message)
        self.text = text
        """The text as it was typed."""
        self.content = Content(clean(text).expandtabs(4))
        """The text as it is shown."""

    def render(self) -> Content:
        """The text, and which of its siblings it is."""
        label = self.fork_label()
        return self.content.append(Content("\n")).append(label) if self.beside else self.content

    def show_fork(self) -> None:
        """Draws it again."""
        self.refresh(layout=True)
