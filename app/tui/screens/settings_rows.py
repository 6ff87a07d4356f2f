"""The rows of the settings: a name, an editor of its kind, and where the value comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Select, Static, Switch

from slipstream.app.settings.setting import Setting, Value


class OnOff(Switch):
    """A switch in words: without colours, too, one sees which way it lies."""

    def render(self) -> Content:
        """The word."""
        return Content("● on" if self.value else "○ off")


class Row(Horizontal):
    """A setting, or a key of the key map, that can be changed."""

    @dataclass
    class Wanted(Message):
        """The owner wants a value; a text is as it was typed."""

        row: Row
        value: Value

    @dataclass
    class Typed(Message):
        """A text is being typed, and nothing is settled yet."""

        row: Row
        text: str

    @dataclass
    class Reached(Message):
        """The row has the focus."""

        row: Row

    def __init__(
        self, name: str, label: str, setting: Setting | None, value: Value, choices: Sequence[str] = ()
    ) -> None:
        """Keeps what to show.

        Args:
            name: The setting's name; ``keys.`` and the action for a key.
            label: What stands before the editor.
            setting: The setting; None for a key.
            value: What it holds now.
            choices: The words it may be; empty for any.
        """
        super().__init__()
        self.what = name
        self.setting = setting
        self._label = label
        self._choices = list(dict.fromkeys([*choices, str(value)])) if choices else []
        self._held = value
        self._mark = Static(Content(""), classes="mark")
        self.editor: Widget = self._made()

    def compose(self) -> ComposeResult:
        """Name, editor, mark."""
        yield self._mark
        yield Static(Content(self._label), classes="label")
        yield self.editor

    def show(self, value: Value, mark: str) -> None:
        """Shows a value and where it comes from, in place of what was typed."""
        self._held = value
        self._mark.update(Content(mark))
        self.set_class(bool(mark), "own")
        with self.prevent(Switch.Changed, Select.Changed, Input.Changed):
            if isinstance(self.editor, Switch):
                self.editor.value = bool(value)
            elif isinstance(self.editor, Select):
                self.editor.value = str(value)
            elif isinstance(self.editor, Input):
                self.editor.value = written(value)
                self.editor.remove_class("-invalid")

    def _made(self) -> Widget:
        kind = self.setting.default if self.setting else ""
        if isinstance(kind, bool):
            return OnOff(bool(self._held), animate=False)
        if self._choices:
            options = [(choice, choice) for choice in self._choices]
            return Select(options, value=str(self._held), allow_blank=False, compact=True)
        return Input(written(self._held), compact=True, select_on_focus=False, max_length=20_000)

    @on(Switch.Changed)
    @on(Select.Changed)
    def _chosen(self, event: Switch.Changed | Select.Changed) -> None:
        event.stop()
        value = event.value if isinstance(event, Switch.Changed) else str(event.value)
        now = self.editor.value if isinstance(self.editor, Switch | Select) else None
        if value != self._held and event.value == now:  # what was shown meanwhile comes late
            self.post_message(self.Wanted(self, value))

    @on(Input.Changed)
    def _typing(self, event: Input.Changed) -> None:
        event.stop()
        if self.editor.has_focus:
            self.post_message(self.Typed(self, event.value))

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._settle()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Tells that it can be explained."""
        self.post_message(self.Reached(self))

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Settles what was typed."""
        self._settle()

    def _settle(self) -> None:
        if isinstance(self.editor, Input) and self.editor.value != written(self._held):
            self.post_message(self.Wanted(self, self.editor.value))


def written(value: Value) -> str:
    """A value as a person types it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
