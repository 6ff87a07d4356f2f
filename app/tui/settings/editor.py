"""A row of the settings, and its editor: a line of text, or a list of choices."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content, Span
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from slipstream.app.settings.values import Setting, Value

LABEL = 22  # cells of a row before its value


@dataclass(frozen=True, slots=True)
class Row:
    """A setting, or a key of the key map."""

    name: str  # the setting's name; ``keys.`` and the action for a key
    label: str  # label before the value
    setting: Setting | None = None  # the setting; None for a key
    choices: tuple[str, ...] = ()  # the allowed values; empty for any

    @property
    def is_switch(self) -> bool:
        return self.setting is not None and isinstance(self.setting.default, bool)

    @property
    def has_steps(self) -> bool:
        return self.is_switch or bool(self.choices)

    @property
    def action(self) -> str:
        return self.name.split(".", 1)[1]

    @property
    def searched(self) -> str:
        return f"{self.name} {self.label} {self.setting.about.text if self.setting else ''}".casefold()

    def word(self, value: Value) -> str:
        named = self.setting.about.named if self.setting else None
        return named[1] if named and value == named[0] else written(value)

    def shown(self, value: Value, own: bool) -> Content:
        """The row in the list; ``own`` says whether the user changed it."""
        mark = "● " if own else "  "
        word = {True: "● on", False: "○ off"}[value] if isinstance(value, bool) else self.word(value).replace("\n", " ")
        word = word or ("" if self.setting else "no key")
        text = f"{mark}{self.label:<{LABEL}}{word}"
        spans = [Span(0, 1, "$primary"), Span(len(mark), len(mark) + LABEL, "bold" if own else "")]
        if self.is_switch:
            spans.append(Span(len(mark) + LABEL, len(text), "$success" if value else "$foreground 60%"))
        return Content(text, [span for span in spans if span.style])


class Editor(Vertical):
    """Edits a setting, below its explanation; the screen handles what is typed and chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.row: Row | None = None  # the row that is being edited
        self.line = Input(id="settings-line", compact=True, select_on_focus=False, max_length=20_000)
        self.choices = OptionList(markup=False, id="settings-choices")

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.choices

    def begin(self, row: Row, value: Value) -> None:
        self.row = row
        self.display = True
        self.line.display, self.choices.display = not row.choices, bool(row.choices)
        if row.choices:
            words = list(dict.fromkeys([*row.choices, str(value)]))
            self.choices.clear_options()
            self.choices.add_options([Option(word, id=word) for word in words])
            self.choices.highlighted = words.index(str(value))
            self.choices.focus()
        else:
            with self.line.prevent(Input.Changed):
                self.line.value = written(value)
            self.wrong(False)
            self.line.focus()
            self.line.cursor_position = len(self.line.value)

    def end(self) -> None:
        self.row = None
        self.display = False

    def wrong(self, wrong: bool) -> None:
        self.line.set_class(wrong, "-invalid")


def written(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
