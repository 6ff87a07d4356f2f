"""Asks for a model file that is on this machine already."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, Static

from slipstream.app.tui.widgets.sheet_keys import sheet_keys

ENDING = ".gguf"


class PathSuggester(Suggester):
    """Completes the path of a folder or of a model file."""

    def __init__(self) -> None:
        """Files come and go: nothing is remembered."""
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """The first that begins so; None if there is none."""
        return await asyncio.to_thread(completed, value)


def completed(typed: str) -> str | None:
    """Completes what was typed of a path; None if nothing begins so."""
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


class ImportScreen(ModalScreen[tuple[Path, Literal["link", "copy"]] | None]):
    """A line to type a path in. Closes with the path and how to take it in, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss", "Back"),
        ("ctrl+y", "take('copy')", "Copy"),
    ]

    def compose(self) -> ComposeResult:
        """The line, and what the two keys do."""
        with Vertical(classes="sheet dialog") as sheet:
            sheet.border_title = "Import a model file"
            sheet.border_subtitle = sheet_keys("Enter links", "^y copies", "Esc back")
            yield Input(placeholder="/path/to/model.gguf", suggester=PathSuggester())
            yield Static(
                Content("→ completes. A link takes no room and leaves the file where it is; a copy stands on its own."),
                classes="detail",
            )

    def on_input_submitted(self) -> None:
        """Links it."""
        self.action_take("link")

    def action_take(self, how: Literal["link", "copy"]) -> None:
        """Closes with what was typed."""
        typed = self.query_one(Input).value.strip()
        if typed:
            self.dismiss((Path(typed).expanduser(), how))
