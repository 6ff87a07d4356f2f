"""What all screens above the chat share."""

from __future__ import annotations

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen

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
