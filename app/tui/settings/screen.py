"""The settings screen: rows, the editor of one, and the list of all; changes apply at once and can be undone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content, Span
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from slipstream.app.platform.safe_text import clean, sentence
from slipstream.app.settings.values import KEYS, Setting, Value, all_settings, titles
from slipstream.app.tui.keys import KeyBar
from slipstream.app.tui.parts.dialogs import Sheet
from slipstream.app.tui.parts.notice import hint, run_in_thread
from slipstream.app.tui.settings.apply_settings import THEME, Settled, check_here
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.outside import shown_path

LABEL = 22  # cells of a row before its value
WIDE = 104  # width from which the explanation is next to the list instead of below
FIRST: Final = {  # the settings that people look for first, with their labels; the others are folded
    "reply.system": "system prompt",
    "sampling.temperature": "temperature",
    "sampling.top_p": "top-p",
    "model.name": "model",
    "model.drafter": "drafter",
    "model.context": "context",
    "model.folders": "folders of models",
    "screen.theme": "theme",
    "screen.sidebar": "list of chats",
    "keeping.chats": "keep chats",
}
ALSO: Final = {"new-chat": " (Ctrl-N does that, too, while no earlier prompt is shown)"}
MORE: Final = "more"  # id of the row that unfolds them
Values = Mapping[str, Value | None]  # values by name; None for the default


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
            self.choices.add_options([Option(row.word(word), id=word) for word in words])
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


class SettingsScreen(Sheet[None]):
    """All settings; Esc goes back to the chat."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Change", show=False, priority=True),
        Binding("right", "step(1)", "Change", key_display="←→", priority=True),
        Binding("pagedown", "group(1)", "Next group", show=False, priority=True),
        Binding("pageup", "group(-1)", "Previous group", show=False, priority=True),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("ctrl+r", "reset", "Default", priority=True),
        Binding("ctrl+t", "reset_all", "All defaults", priority=True),
        Binding("ctrl+z", "undo", "Undo", priority=True),
        Binding("escape,f9", "leave", "Back", key_display="Esc", priority=True),
        Binding("f1", "app.help", "Help"),
    ]

    def __init__(self, settled: Settled) -> None:
        super().__init__()
        self._settled = settled
        self._undo: list[Values] = []
        made = {row.name: row for row in self._made()}
        self.rows: dict[str, Row] = {name: made[name] for name in FIRST} | made  # the rows by name, in order
        self.row: Row = next(iter(self.rows.values()))  # the selected row
        self._seen: dict[str, Content] = {}
        self._error = ""
        self._folded = True  # whether the settings that are not looked for first are hidden
        self.search = Input(placeholder="/ searches all settings and keys", id="settings-search", compact=True)
        self.list = OptionList(markup=False, id="settings-list")
        self.words = Static(Content(""), id="settings-words")
        self.editor = Editor()

    def compose(self) -> ComposeResult:
        yield self.search
        with Horizontal(id="settings"):
            yield self.list
            with VerticalScroll(id="settings-about", can_focus=False):
                yield self.words
                yield self.editor
        yield KeyBar()

    def on_mount(self) -> None:
        self.editor.end()
        self._fill()
        self.go_to(self.row.name)
        self.list.focus()

    def _fill(self) -> None:
        """Lists the rows that have the words of the search; without one, those that are unfolded."""
        words = self.search.value.casefold().split()
        before, hidden = "", 0
        names = {**titles(), KEYS: "Keys of the chat", MORE: "Often changed"}
        options: list[Option] = []
        self._seen = {}
        for name, row in self.rows.items():
            if words and not all(word in row.searched for word in words):
                continue
            if self._folded and not words and name not in FIRST:
                hidden += 1
                continue
            group = _group(name)
            if group != before:
                title = Content(names[group], [Span(0, len(names[group]), "bold $primary")])
                options += [Option("", disabled=True)] if before else []
                options.append(Option(title, disabled=True))
            before = group
            self._seen[name] = self._content(row)
            options.append(Option(self._seen[name], id=name))
        if hidden:
            options += [Option("", disabled=True), Option(f"▸ {hidden} more settings and keys", id=MORE)]
        if not options:
            options.append(Option("No matches.", disabled=True))
        self.list.clear_options()
        self.list.add_options(options)

    def on_resize(self) -> None:
        self.set_class(self.size.width >= WIDE, "wide")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.editor.row or self.search.has_focus:
            return action == "leave"
        return action != "step" or self.row.has_steps

    def go_to(self, name: str) -> None:
        if name not in self._seen:
            self._folded = False
            self.search.value = ""
            self._fill()
        self.list.highlighted = self.list.get_option_index(name)

    def action_group(self, step: int) -> None:
        firsts: dict[str, str] = {}
        for name in self.rows:
            firsts.setdefault(_group(name), name)
        at = list(firsts).index(_group(self.row.name)) + step
        if 0 <= at < len(firsts):
            self.go_to(list(firsts.values())[at])
            self.list.scroll_to(y=max(self.list.highlighted or 0, 2) - 2, animate=False)

    @on(OptionList.OptionHighlighted, "#settings-list")
    def _reached(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id == MORE:
            self.words.update(Content("Enter shows all settings, and the keys of the chat."))
            return
        if event.option_id and event.option_id != self.row.name:
            self.row, self._error = self.rows[event.option_id], ""
            self.editor.end()
            self.refresh_bindings()
        self._explain()

    def action_leave(self) -> None:
        if self.editor.row:
            self._end_edit()
        elif self.search.has_focus or self.search.value:
            self.search.value = ""
            self.list.focus()
        else:
            self.dismiss(None)

    @on(OptionList.OptionSelected, "#settings-list")
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option_id == MORE:
            self.go_to(next(name for name in self.rows if name not in FIRST))
        elif self.row.is_switch:
            self.action_step(1)
        else:
            self.editor.begin(self.row, self._value(self.row))
            self.refresh_bindings()
            self._explain()

    def action_step(self, step: int) -> None:
        value = self._value(self.row)
        if self.row.is_switch:
            self._settle(self.row, not value)
        elif self.row.choices:
            choices = list(dict.fromkeys([*self.row.choices, str(value)]))
            self._settle(self.row, choices[(choices.index(str(value)) + step) % len(choices)])

    def action_search(self) -> None:
        self.search.focus()

    @on(Input.Changed, "#settings-search")
    def _searching(self) -> None:
        self._fill()
        found = next(iter(self._seen), None)
        if found:
            self.go_to(found)

    @on(Input.Submitted, "#settings-search")
    def _searched(self) -> None:
        self.list.focus()

    @on(Input.Submitted, "#settings-line")
    def _entered(self, event: Input.Submitted) -> None:
        self._take(event.value)

    @on(OptionList.OptionHighlighted, "#settings-choices")
    def _looked_at(self, event: OptionList.OptionHighlighted) -> None:
        if self.editor.row and self.editor.row.name == THEME:
            self._settled.look_at(str(event.option_id))

    @on(OptionList.OptionSelected, "#settings-choices")
    def _picked(self, event: OptionList.OptionSelected) -> None:
        self._take(str(event.option_id))

    def _take(self, value: Value) -> None:
        if self.editor.row and self._settle(self.editor.row, value):
            self._end_edit()

    @on(Input.Changed, "#settings-line")
    def _typed(self, event: Input.Changed) -> None:
        if self.editor.row is None:
            return
        self._error = ""
        try:
            self._settled.checked(self.editor.row.name, event.value)
        except UsageError as error:
            self._error = error.title
        self.editor.wrong(bool(self._error))
        self._explain()

    def _settle(self, row: Row, value: Value) -> bool:
        try:
            value = self._settled.checked(row.name, value)
        except UsageError as error:
            self._error = error.title
            self._explain()
            return False
        usual = row.setting is None and value == self._settled.keys.usual[row.action]
        carry = partial(self._carry, {row.name: None if usual else value}, {row.name: self._own(row)})
        if row.setting and row.setting.about.here and not row.choices:
            run_in_thread(self, lambda: check_here(row.name, str(value)), lambda _: carry(), self._refuse)
        else:
            carry()
        return True

    def _refuse(self, error: SlipstreamError) -> None:
        self._error = f"{error.title} {error.hint}"
        self._explain()

    def _end_edit(self) -> None:
        if self.editor.row and self.editor.row.name == THEME:
            self._settled.look_at()
        self._error = ""
        self.editor.end()
        self.list.focus()
        self.refresh_bindings()
        self._explain()

    def action_reset(self) -> None:
        own = self._own(self.row)
        if own is None:
            hint(self, "It is at its default.")
        else:
            self._carry({self.row.name: None}, {self.row.name: own})

    def action_reset_all(self) -> None:
        own = {name: value for name, row in self.rows.items() if (value := self._own(row)) is not None}
        if not own:
            hint(self, "Everything is at its default.")
        elif self._carry(dict.fromkeys(own), own):
            hint(self, f"{len(own)} {'settings are' if len(own) > 1 else 'setting is'} at the default. Ctrl-Z undoes.")

    def action_undo(self) -> None:
        if not self._undo:
            hint(self, "Nothing to undo.")
            return
        values = self._undo.pop()
        self._carry(values, None)
        self.go_to(next(iter(values)))

    def _carry(self, values: Values, before: Values | None) -> bool:
        if before is not None:
            self._undo.append(before)
        kept = True
        try:
            self._settled.restore(values)
        except SlipstreamError as error:
            kept = False
            self.notify(clean(f"{error.title} {error.hint}"), severity="warning", timeout=8, markup=False)
        self._error = ""
        for name in self._seen:
            if (content := self._content(self.rows[name])) != self._seen[name]:
                self._seen[name] = content
                self.list.replace_option_prompt(name, content)
        self._explain()
        return kept

    def _made(self) -> Iterable[Row]:
        for name, setting in all_settings().items():
            choices = tuple(self._settled.themes) if name == THEME else setting.about.choices
            yield Row(name, FIRST.get(name) or setting.key.replace("_", " "), setting, choices)
        for action in self._settled.keys.usual:
            yield Row(f"{KEYS}.{action}", self._settled.keys.titles[action])

    def _content(self, row: Row) -> Content:
        return row.shown(self._value(row), self._own(row) is not None)

    def _value(self, row: Row) -> Value:
        return self._settled.file.settings.value(row.name) if row.setting else self._settled.keys.of(row.action)

    def _own(self, row: Row) -> Value | None:
        return self._settled.file.settled(row.name) if row.setting else self._settled.file.settings.keys.get(row.action)

    def _explain(self) -> None:
        row, file, faint = self.row, self._settled.file, "$foreground 70%"
        lines: list[tuple[str, str]] = [(row.name, "bold $primary")]
        if row.setting:
            usual = row.word(row.setting.default) or "empty"
            wanted = "one of the list" if row.choices and not row.setting.about.choices else row.setting.wanted
            lines.append((row.setting.about.sentence, ""))
            lines.append((f"{wanted.capitalize()}; default: {usual}.", faint))
            lines.append((f"{row.setting.about.effect}.", faint))
            where = file.where(row.name)
        else:
            lines.append((f"Key for “{row.label}”{ALSO.get(row.action, '')}.", ""))
            lines.append(("Such as ctrl+g, alt+x or f7; several with commas, empty for none.", faint))
            lines.append((f"Default: {self._settled.keys.usual_of(row.action)}. Takes effect now.", faint))
            where = ""
        if where and where != "settled":
            lines.append((f"{where.capitalize()}.", "$warning"))
        if self._error:
            named = self._error.startswith(row.name)
            lines.append((clean(self._error) if named else sentence(self._error), "bold $error"))
        if file.broken:
            lines.append((clean(f"Nothing can be kept: {file.broken}"), "$error"))
        if self.editor.row is None:
            how = "Enter or arrows change it" if row.has_steps else "Enter changes it"
            lines.append((f"{how}; ● changed by you, in {shown_path(file.path)}", "$foreground 55%"))
        parts = [Content(text, [Span(0, len(text), style)] if style else []) for text, style in lines]
        self.words.update(Content("\n").join(parts))


def _group(name: str) -> str:
    """The heading of a row: that of those looked for first, else its table in the file."""
    return MORE if name in FIRST else name.split(".")[0]
