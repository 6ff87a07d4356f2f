"""Two small questions: yes or no, and a line of text."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from slipstream.app.safe_text import clean
from slipstream.app.tui.widgets.sheet_keys import sheet_keys


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
            sheet.border_subtitle = sheet_keys(f"Enter {yes}", "Esc back")
            yield Static(Content(clean(question)), classes="question")
            yield Static(Content(clean(detail)), classes="detail")

    def action_answer(self, yes: bool) -> None:
        """Closes with the answer."""
        self.dismiss(yes)


class LineScreen(ModalScreen[str | None]):
    """Asks for a line of text; Esc gives none."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, title: str, text: str, enter: str) -> None:
        """Keeps the words.

        Args:
            title: What is asked for.
            text: What there is to begin with.
            enter: What Enter does, in a word.
        """
        super().__init__()
        self._title, self._text, self._enter = title, text, enter

    def compose(self) -> ComposeResult:
        """A line to type in."""
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = self._title
            sheet.border_subtitle = sheet_keys(f"Enter {self._enter}", "Esc back")
            yield Input(self._text, max_length=1000)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes with the line."""
        self.dismiss(event.value.strip() or None)
