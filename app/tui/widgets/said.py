"""What the messages of a chat have in common: they can be selected, and may stand beside others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content, Span
from textual.message import Message
from textual.widget import Widget

CODE_KEYS = range(1, 10)
"""Code blocks of a reply that a key copies."""


class Said(Widget):
    """A message of a chat. While it is selected it has the focus, and these keys are for it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.select(-1)", "Up", show=False),
        Binding("down,j", "screen.select(1)", "Down", show=False),
        Binding("e", "screen.edit_selected", "Edit"),
        Binding("r", "screen.again_selected", "Again"),
        Binding("left,h", "screen.branch(-1)", "Branch", key_display="←→"),
        Binding("right,l", "screen.branch(1)", "Next branch", show=False),
        Binding("c", "screen.copy_selected", "Copy"),
        *(Binding(str(key), f"screen.copy_code({key})", show=False) for key in CODE_KEYS),
        Binding("escape,enter", "screen.deselect", "Back", key_display="Esc"),
    ]

    @dataclass
    class Typed(Message):
        """Words for the prompt came while it was selected."""

        text: str
        pasted: bool = False

    def __init__(self, message: int) -> None:
        """Keeps the message's number in the store."""
        super().__init__()
        self.message = message
        self.beside: list[int] = []
        """All messages that stand in its place, oldest first; empty where it is alone."""

    def fork(self, siblings: list[int]) -> None:
        """Says which messages stand in its place."""
        if siblings != self.beside:
            self.beside = siblings
            self.show_fork()

    def show_fork(self) -> None:
        """Draws ``fork_label`` again."""
        self.refresh(layout=True)

    def fork_label(self) -> Content:
        """Which of its siblings it is: "‹ 2/3 ›", or nothing."""
        if not self.beside:
            return Content("")
        text = f"‹ {self.beside.index(self.message) + 1}/{len(self.beside)} ›"
        return Content(text, [Span(0, len(text), "bold $secondary")])

    def neighbour(self, step: int) -> int | None:
        """The message before (-1) or after (1) it in its place; None where there is none."""
        at = self.beside.index(self.message) + step if self.beside else -1
        return self.beside[at] if 0 <= at < len(self.beside) else None

    def select(self) -> None:
        """Takes the focus, which it can do only now: Tab and the mouse pass it by."""
        self.can_focus = True
        self.screen.set_focus(self, scroll_visible=False)  # at once: the next key is for it

    def on_key(self, event: events.Key) -> None:
        """A character that is none of the keys is meant for the prompt."""
        if event.is_printable and event.character and event.key not in self.screen.active_bindings:
            event.stop()
            event.prevent_default()
            self.post_message(self.Typed(event.character))

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted is meant for the prompt, too."""
        event.stop()
        self.post_message(self.Typed(event.text, pasted=True))

    def on_blur(self) -> None:
        """It is not selected any more, unless it was selected again meanwhile."""
        self.can_focus = self.is_attached and self.screen.focused is self
