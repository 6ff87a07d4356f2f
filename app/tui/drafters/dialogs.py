"""Dialogs for the inputs of training, importing and indexing."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from slipstream.app.library import TOKENS
from slipstream.app.tui.keys import sheet_keys
from slipstream.app.tui.parts.dialogs import Dialog, PathSuggester


class TrainScreen(Dialog[tuple[str, int] | None]):
    """Edits the training text and the number of tokens. Closes with both, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = f"Train {self._method}"
            sheet.border_subtitle = sheet_keys("Enter trains", "Esc back")
            yield Static(Content("Text: answers, chats, or a folder"))
            yield Input("answers", id="text", suggester=PathSuggester())
            yield Static(Content("Tokens of it"), classes="heading")
            yield Input(f"{TOKENS}", id="tokens", type="integer")
            about = (
                "answers: what the model itself writes. chats: your own, on this machine only. It takes from minutes"
                " to many hours and says how long; the chat goes on meanwhile. Cancelled, it goes on where it was."
            )
            yield Static(Content(about), classes="detail")
            yield Static(classes="problem")

    def on_input_submitted(self) -> None:
        text = self.query_one("#text", Input).value.strip()
        tokens = self.query_one("#tokens", Input).value.strip()
        if not text or not tokens.isdecimal() or not int(tokens):
            self.query_one(".problem", Static).update("Both are needed: a text, and a number above 0.")
            return
        self.dismiss((text, int(tokens)))


class PathScreen(Dialog[str | None]):
    """Edits the path of a file or folder. Closes with it, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, title: str, about: str, enter: str) -> None:
        super().__init__()
        self._title, self._about, self._enter = title, about, enter

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = self._title
            sheet.border_subtitle = sheet_keys(f"Enter {self._enter}", "Esc back")
            yield Input(placeholder="~/a/folder", suggester=PathSuggester())
            yield Static(Content(f"→ completes. {self._about}"), classes="detail")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if path := event.value.strip():
            self.dismiss(path)
