"""What the user said."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from slipstream.app.safe_text import clean
from slipstream.app.tui.widgets.models_words import size
from slipstream.app.tui.widgets.said import Said

MOST_LINES = 40
"""Lines of a message that are shown at first: drawing ten thousand takes seconds."""
MOST_CHARACTERS = 6000
"""Characters of a message that are shown at first."""


class Question(Said):
    """A message of the user, as it was typed; of a long one the beginning, until a click or Space shows all of it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "unfold", "All of it")]

    def __init__(self, message: int, text: str) -> None:
        """Keeps the message's number in the store, and its text."""
        super().__init__(message)
        self.text = text
        """The text as it was typed."""
        begin = "\n".join(text.split("\n", MOST_LINES)[:MOST_LINES])[:MOST_CHARACTERS]
        self.folded = len(begin) < len(text)
        """Whether only its beginning is shown."""
        self.content = Content(clean(begin).expandtabs(4))
        """The text as it is shown."""
        if self.folded:
            lines, whole = text.removesuffix("\n").count("\n") + 1, size(len(text.encode("utf-8", "replace")))
            note = f"\n… of {lines:,} lines, {whole} · Space or a click shows all"
            self.content = self.content.append(Content(note).stylize("$foreground 60%"))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers to show all where there is more."""
        return self.folded if action == "unfold" else True

    def action_unfold(self) -> None:
        """Shows all of it."""
        if self.folded:
            self.folded = False
            self.content = Content(clean(self.text).expandtabs(4))
            self.refresh(layout=True)

    def on_click(self) -> None:
        """Shows all of it."""
        self.action_unfold()

    def render(self) -> Content:
        """The text, and which of its siblings it is."""
        label = self.fork_label()
        return self.content.append(Content("\n")).append(label) if self.beside else self.content
