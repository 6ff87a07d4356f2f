"""The command palette."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from textual.command import CommandPalette
from textual.worker import Worker

from slipstream.app.tui.parts.dialog import Sheet


class Palette(CommandPalette, Sheet[None]):
    """Textual's palette, for keys that come faster than it is drawn."""

    def run_worker(self, *arguments: Any, **options: Any) -> Worker[Any]:
        """Gathers the commands; where the palette is closed meanwhile, that fails and is of no use any more."""
        return super().run_worker(*arguments, **options | {"exit_on_error": False})

    def _action_command_list(self, action: str) -> None:
        """Moves in the list, which may not have its lines yet: Textual looks for them and would end the program."""
        with suppress(KeyError):
            super()._action_command_list(action)
