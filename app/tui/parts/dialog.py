"""Base classes of the screens above the chat, and the command palette."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import ModalScreen, Screen
from textual.worker import Worker

T = TypeVar("T")


class Sheet(Screen[T]):
    """A screen that ignores a second ``dismiss``.

    Keys may be queued while it closes, as by two quick Enters; Textual would then close the screen below, or end the
    program if there is none.
    """

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Closes the screen, once."""
        return super().dismiss(result) if self in self.app.screen_stack else AwaitComplete()


class Dialog(ModalScreen[T], Sheet[T]):
    """A sheet over a visible screen."""


class Palette(CommandPalette, Sheet[None]):
    """Textual's palette, made safe for keys that arrive before it is drawn."""

    def run_worker(self, *arguments: Any, **options: Any) -> Worker[Any]:
        """Collects the commands; ignores failures, since closing the palette meanwhile causes one."""
        return super().run_worker(*arguments, **options | {"exit_on_error": False})

    def _action_command_list(self, action: str) -> None:
        """Moves in the list; Textual would raise a ``KeyError`` before the list has rows."""
        with suppress(KeyError):
            super()._action_command_list(action)
