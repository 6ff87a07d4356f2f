"""Two small questions: yes or no, and a line of text."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from slipstream.app.safe_text import clean, one_line


class ConfirmScreen(ModalScreen[bool]):
    """Asks before something that cannot be undone; Esc means no."""

    BINDINGS: ClassVar[list[BindingType]] = [("y,enter", "answer(True)", "Yes"), ("n,escape", "answer(False)", "No")]

    def __init__(self, question: str, detail: str, yes: str) -> None:
        """Keeps the words.

        Args:
            question: What is asked.
            detail: What it means.
            yes: What yes does, in a word.
        """
        super().__init__()
        self._words = (question, detail, yes)

    def compose(self) -> ComposeResult:
        """The question, its meaning, the keys."""
        question, detail, yes = self._words
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_subtitle = f"Enter {yes} · Esc back"
            yield Static(Content(clean(question)), classes="question")
            yield Static(Content(clean(detail)), classes="detail")

    def action_answer(self, yes: bool) -> None:
        """Closes with the answer."""
        self.dismiss(yes)


class RenameScreen(ModalScreen[str | None]):
    """Asks for a title; Esc keeps the old one."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, title: str) -> None:
        """Begins with the title there is."""
        super().__init__()
        self._old = one_line(title)

    def compose(self) -> ComposeResult:
        """A line to type in."""
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = "Title"
            sheet.border_subtitle = "Enter keeps · Esc back"
            yield Input(self._old, max_length=200)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes with the title."""
        self.dismiss(event.value.strip() or None)
