"""A screen with a list and the details of what is under the bar: how it moves, and what it says in passing."""

from __future__ import annotations

from typing import ClassVar, Final, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from slipstream.app.tui.toasts import hint, trouble
from slipstream.app.tui.widgets.models_browser import Browser
from slipstream.app.tui.widgets.models_view import View
from slipstream.models.errors import SlipstreamError

T = TypeVar("T")
LOW: Final = 18
"""Rows below which only what matters most is shown."""


class BrowsingScreen(Screen[T]):
    """What the screens with a ``Browser`` have in common. Each says itself which keys lead back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Down", show=False),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("pagedown", "move(10)", "Page down", show=False),
        Binding("pageup", "move(-10)", "Page up", show=False),
        Binding("shift+down", "details(1)", "More details", show=False),
        Binding("shift+up", "details(-1)", "Fewer details", show=False),
    ]

    def __init__(self, view: View) -> None:
        """Begins with a list."""
        super().__init__()
        self.browser = Browser(view)

    def on_resize(self) -> None:
        """Gives up what a low screen has no room for."""
        self.set_class(self.size.height < LOW, "low")

    def action_move(self, step: int) -> None:
        """Moves the bar, wherever the keys go."""
        self.browser.move(step)

    def action_details(self, step: int) -> None:
        """Scrolls the details, where there are more than fit."""
        self.browser.scroll_details(step)

    def action_leave(self) -> None:
        """Goes back without a choice; what was begun here goes on."""
        self.dismiss(None)

    def _say(self, words: str) -> None:
        hint(self, words)

    def _fail(self, error: SlipstreamError) -> None:
        trouble(self, error)
