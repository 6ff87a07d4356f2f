"""A short list to choose from: several of it, or just one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from slipstream.app.safe_text import one_line

ON, OFF, ONE = "✓ ", "· ", "● "


class Picks(OptionList, inherit_bindings=False):
    """Rows with a mark before those that are chosen; space or a click switches one. Enter is the screen's."""

    DEFAULT_CSS = """
    Picks { height: auto; max-height: 100%; padding: 0; border: none; background: transparent; }
    Picks:focus { border: none; background-tint: transparent 0%; }
    Picks > .option-list--option { padding: 0 1; }
    Picks > .option-list--option-highlighted { background: transparent; color: $foreground; text-style: none; }
    Picks:focus > .option-list--option-highlighted {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: $block-cursor-text-style;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "select", "Switch", show=False),
        Binding("down", "cursor_down", "Down", show=False),
        Binding("up", "cursor_up", "Up", show=False),
    ]

    @dataclass
    class Changed(Message):
        """Something else is chosen now."""

    def __init__(self, names: Sequence[str], chosen: Sequence[str], one: bool = False, id: str | None = None) -> None:
        """Keeps the names.

        Args:
            names: What can be chosen.
            chosen: What is chosen at first.
            one: Whether just one can be chosen.
            id: Of the widget.
        """
        self._names, self._chosen, self._one = names, set(chosen), one
        super().__init__(*(Option(self._row(name)) for name in names), markup=False, id=id)

    @property
    def chosen(self) -> tuple[str, ...]:
        """What is chosen, in the order of the list."""
        return tuple(name for name in self._names if name in self._chosen)

    def action_select(self) -> None:
        """Switches the row under the bar."""
        if self.highlighted is not None:
            self._switch(self.highlighted)

    async def _on_click(self, event: events.Click) -> None:
        event.prevent_default()
        clicked: int | None = event.style.meta.get("option")
        if clicked is not None:
            self.highlighted = clicked
            self._switch(clicked)

    def _switch(self, at: int) -> None:
        name = self._names[at]
        self._chosen = {name} if self._one else self._chosen ^ {name}
        for row, each in enumerate(self._names):
            self.replace_option_prompt_at_index(row, self._row(each))
        self.post_message(self.Changed())

    def _row(self, name: str) -> Content:
        on = name in self._chosen
        mark = Content((ONE if self._one else ON) if on else OFF)
        return mark.stylize("bold $success" if on else "$foreground 45%").append(Content(one_line(name)))
