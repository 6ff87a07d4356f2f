"""The dialog that imports a local model file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from slipstream.app.tui.parts.dialog import Dialog
from slipstream.app.tui.parts.dialogs import PathSuggester
from slipstream.app.tui.parts.key_bar import sheet_keys


class ImportScreen(Dialog[tuple[Path, Literal["link", "copy"]] | None]):
    """Edits a path. Closes with it and how to import the file, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Back"),
        ("ctrl+y", "take('copy')", "Copy"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = "Import a model file"
            sheet.border_subtitle = sheet_keys("Enter links", "^y copies", "Esc back")
            yield Input(placeholder="/path/to/model.gguf", suggester=PathSuggester())
            yield Static(
                Content("→ completes. A link takes no room and leaves the file where it is; a copy stands on its own."),
                classes="detail",
            )

    def on_input_submitted(self) -> None:
        self.action_take("link")

    def action_take(self, how: Literal["link", "copy"]) -> None:
        typed = self.query_one(Input).value.strip()
        if typed:
            self.dismiss((Path(typed).expanduser(), how))
