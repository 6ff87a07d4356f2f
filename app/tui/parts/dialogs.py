"""Dialogs for a confirmation and for a line of text, and path completion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input, Static

from slipstream.app.platform.safe_text import clean
from slipstream.app.tui.parts.dialog import Dialog
from slipstream.app.tui.parts.key_bar import sheet_keys


class ConfirmScreen(Dialog[bool]):
    """Asks for confirmation. Closes with the answer; Esc is no."""

    BINDINGS: ClassVar[list[BindingType]] = [("y,enter", "answer(True)", "Yes"), ("n,escape", "answer(False)", "No")]

    def __init__(self, question: str, detail: str, yes: str) -> None:
        super().__init__()
        self._words = (question, detail, yes)

    def compose(self) -> ComposeResult:
        question, detail, yes = self._words
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_subtitle = sheet_keys(f"Enter {yes}", "Esc back")
            yield Static(Content(clean(question)), classes="question")
            yield Static(Content(clean(detail)), classes="detail")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class LineScreen(Dialog[str | None]):
    """Edits a line of text. Closes with it, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, title: str, text: str, enter: str) -> None:
        super().__init__()
        self._title, self._text, self._enter = title, text, enter

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = self._title
            sheet.border_subtitle = sheet_keys(f"Enter {self._enter}", "Esc back")
            yield Input(self._text, max_length=1000)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


ENDING = ".gguf"


class PathSuggester(Suggester):
    """Completes the path of a folder or of a model file."""

    def __init__(self) -> None:
        """Disables the cache, since files change."""
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value)


def completed(typed: str) -> str | None:
    """The first folder or model file whose path begins with ``typed``, or None."""
    folder, _, begun = typed.rpartition("/")
    if not typed.startswith(("/", "~", ".")):
        return None
    try:
        inside = sorted(Path(folder + "/").expanduser().iterdir())
        for path in inside:
            hidden = path.name.startswith(".") and not begun.startswith(".")
            if path.name.startswith(begun) and not hidden:
                if path.is_dir():
                    return f"{folder}/{path.name}/"
                if path.name.endswith(ENDING):
                    return f"{folder}/{path.name}"
    except (OSError, RuntimeError):  # no such folder, no right to read it, or no such user
        return None
    return None
