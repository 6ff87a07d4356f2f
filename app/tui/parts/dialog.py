"""What all screens above the chat share, and the command palette, which is one of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import ModalScreen, Screen
from textual.worker import Worker

T = TypeVar("T")


class Sheet(Screen[T]):
    """A screen that a second key cannot close once more.

    Keys may wait while it closes, as two quick Enters do; Textual would then close the screen below, or end the program
    where there is none.
    """

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Closes the screen; a closed one stays so."""
        return super().dismiss(result) if self in self.app.screen_stack else AwaitComplete()


class Dialog(ModalScreen[T], Sheet[T]):
    """A sheet below which the other screen is still seen."""


class Palette(CommandPalette, Sheet[None]):
    """Textual's palette, for keys that come faster than it is drawn."""

    def run_worker(self, *arguments: Any, **options: Any) -> Worker[Any]:
        """Gathers the commands; where the palette is closed meanwhile, that fails and is of no use any more."""
        return super().run_worker(*arguments, **options | {"exit_on_error": False})

    def _action_command_list(self, action: str) -> None:
        """Moves in the list, which may not have its lines yet: Textual looks for them and would end the program."""
        with suppress(KeyError):
            super()._action_command_list(action)
