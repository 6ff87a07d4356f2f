"""The settings: every one typed and explained, changed at once, undone with a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content, Span
from textual.screen import Screen
from textual.widgets import Footer, Input, Static
from textual.widgets._select import SelectOverlay

from slipstream.app.safe_text import clean
from slipstream.app.settings.setting import Value
from slipstream.app.settings.values import KEYS, all_settings, titles
from slipstream.app.tui.screens.settings_rows import Row, written
from slipstream.app.tui.settled import THEME, Settled
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.quoting import shown_path

WIDE = 104
"""Columns from which on a setting is explained beside the list; on a narrower screen below it."""
Values = Mapping[str, Value | None]
"""What was settled, by name; None for the default."""


class SettingsScreen(Screen[None]):
    """All settings; Esc goes back to the chat."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "Next", show=False, priority=True),
        Binding("up", "move(-1)", "Previous", show=False, priority=True),
        Binding("pagedown", "group(1)", "Next group", priority=True, key_display="PgDn"),
        Binding("pageup", "group(-1)", "Previous group", show=False, priority=True),
        Binding("ctrl+r", "reset", "Default", priority=True),
        Binding("ctrl+t", "reset_all", "All defaults", priority=True),
        Binding("ctrl+z", "undo", "Undo", priority=True),
        Binding("escape,f9", "leave", "Back", key_display="Esc"),
    ]

    def __init__(self, settled: Settled) -> None:
        """Keeps who carries the settings."""
        super().__init__()
        self._settled = settled
        self._undo: list[Values] = []
        self.rows: dict[str, Row] = {name: row for row in self._made() for name in (row.what,)}
        """The rows by name."""
        self._words = Static(Content(""), id="settings-words")
        self._row: Row = next(iter(self.rows.values()))
        self._error = ""

    def compose(self) -> ComposeResult:
        """The list, and what is said of the setting under the bar."""
        with Horizontal(id="settings"):
            with VerticalScroll(id="settings-list") as scroll:
                scroll.can_focus = False
                before = ""
                for name, row in self.rows.items():
                    group = name.split(".")[0]
                    if group != before:
                        yield Static(Content(self._titles()[group]), classes="heading")
                    before = group
                    yield row
            with VerticalScroll(id="settings-about") as about:
                about.can_focus = False
                yield self._words
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Shows the values, with the bar on the first."""
        self._fill()
        self._row.editor.focus()

    def on_resize(self) -> None:
        """Explains beside the list where there is room."""
        self.set_class(self.size.width >= WIDE, "wide")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leaves the keys to a list that is open."""
        opened = isinstance(self.focused, SelectOverlay)
        return not opened or action not in ("move", "group")

    # --- moving ---------------------------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        """Goes to the next row."""
        self._go([*self.rows.values()], step)

    def action_group(self, step: int) -> None:
        """Goes to the first row of the next group."""
        firsts: dict[str, Row] = {}
        for name, row in self.rows.items():
            firsts.setdefault(name.split(".")[0], row)
        here = self._row.what.split(".")[0]
        rows = list(firsts.values())
        rows[list(firsts).index(here)].editor.focus()
        self._go(rows, step, firsts[here])

    def _go(self, rows: list[Row], step: int, here: Row | None = None) -> None:
        at = rows.index(here or self._row) + step
        if 0 <= at < len(rows):
            rows[at].editor.focus()
            if at == 0:
                self.query_one("#settings-list").scroll_home(animate=False)

    def action_leave(self) -> None:
        """Goes back to the chat; what was typed is settled."""
        self.set_focus(None)
        self.call_after_refresh(self._leave)

    def _leave(self) -> None:
        self.dismiss(None)  # not returned: a screen that awaits its own end waits for ever

    # --- changing -------------------------------------------------------------------------------------------------

    @on(Row.Wanted)
    def _wanted(self, message: Row.Wanted) -> None:
        """Settles a value; a text that cannot be one is said, and stays to be mended while it has the focus."""
        row = message.row
        before = {row.what: self._settled.file.settled(row.what) if row.setting else self._own_key(row)}
        try:
            value = self._settled.checked(row.what, message.value)
        except UsageError as error:
            if row.has_focus_within:
                self._say(error.title)
            else:
                self._hint(f"{error.title} It stays {written(self._value(row)) or 'empty'}.")
                self._show(row)
            return
        usual = not row.setting and value == self._settled.keys.usual[row.what.split(".", 1)[1]]
        self._carry({row.what: None if usual else value}, before)

    @on(Row.Typed)
    def _typed(self, message: Row.Typed) -> None:
        """Says while it is typed whether it can be."""
        self._error = ""
        try:
            self._settled.checked(message.row.what, message.text)
        except UsageError as error:
            self._error = error.title
        message.row.editor.set_class(bool(self._error), "-invalid")
        self._explain()

    @on(Row.Reached)
    def _reached(self, message: Row.Reached) -> None:
        if message.row is not self._row:
            self._error = ""
        self._row = message.row
        self._explain()

    def action_reset(self) -> None:
        """Takes the setting under the bar back to its default."""
        row = self._row
        before = self._settled.file.settled(row.what) if row.setting else self._own_key(row)
        if before is None:
            self._show(row)
            self._say("")
            return
        self._carry({row.what: None}, {row.what: before})

    def action_reset_all(self) -> None:
        """Takes everything back to its default."""
        own = {name: value for name, value in self._all_own() if value is not None}
        if not own:
            self._hint("Everything is at its default.")
            return
        if self._carry(dict.fromkeys(own), own):
            self._hint(f"{len(own)} {'settings are' if len(own) > 1 else 'setting is'} at the default. Ctrl-Z undoes.")

    def action_undo(self) -> None:
        """Undoes the last change."""
        if not self._undo:
            self._hint("Nothing to undo.")
            return
        values = self._undo.pop()
        self._carry(values, None)
        if len(values) == 1:
            self.rows[next(iter(values))].editor.focus()

    def _carry(self, values: Values, before: Values | None) -> bool:
        """Settles values; ``before`` is what an undo brings back."""
        done = True
        try:
            self._settled.restore(values)
        except SlipstreamError as error:
            done = False
            self.notify(clean(f"{error.title} {error.hint}"), severity="warning", timeout=8, markup=False)
        if before is not None:
            self._undo.append(before)
        self._error = ""
        self._fill()
        return done

    # --- showing --------------------------------------------------------------------------------------------------

    def _made(self) -> Iterable[Row]:
        for name, setting in all_settings().items():
            choices = self._settled.themes if name == THEME else setting.about.choices
            label = setting.key.replace("_", " ")
            yield Row(name, label, setting, self._settled.file.settings.value(name), choices)
        for action in self._settled.keys.usual:
            yield Row(f"{KEYS}.{action}", action, None, self._settled.keys.of(action))

    def _titles(self) -> dict[str, str]:
        return {**titles(), KEYS: "Keys of the chat"}

    def _fill(self) -> None:
        for row in self.rows.values():
            self._show(row)
        self._explain()

    def _show(self, row: Row) -> None:
        where = self._settled.file.where(row.what) if row.setting else ("settled" if self._own_key(row) else "")
        row.show(self._value(row), {"": "", "settled": "●"}.get(where, "○"))

    def _value(self, row: Row) -> Value:
        if row.setting:
            return self._settled.file.settings.value(row.what)
        return self._settled.keys.of(row.what.split(".", 1)[1])

    def _own_key(self, row: Row) -> str | None:
        return self._settled.file.settings.keys.get(row.what.split(".", 1)[1])

    def _all_own(self) -> Iterable[tuple[str, Value | None]]:
        for name, row in self.rows.items():
            yield name, self._settled.file.settled(name) if row.setting else self._own_key(row)

    def _say(self, error: str) -> None:
        self._error = error
        self._explain()

    def _hint(self, text: str) -> None:
        self.app.clear_notifications()
        self.notify(clean(text), timeout=4, markup=False)

    def _explain(self) -> None:
        """Says what the setting under the bar does, what it may be, and what is wrong with what is typed."""
        row, file = self._row, self._settled.file
        lines: list[tuple[str, str]] = [(row.what, "bold $primary")]
        if row.setting:
            usual = written(row.setting.default) or "empty"
            lines += [
                (row.setting.about.sentence, ""),
                (f"{row.setting.wanted.capitalize()}; default: {usual}.", "$foreground 70%"),
            ]
            lines.append((f"Counts {row.setting.about.when}.", "$foreground 70%"))
        else:
            action = row.what.split(".", 1)[1]
            usual = self._settled.keys.usual_of(action)
            lines += [(f"Key for {action}, such as ctrl+g, alt+x or f6; several with commas.", "")]
            lines.append((f"Default: {usual}. Counts at once.", "$foreground 70%"))
        where = file.where(row.what) if row.setting else ""
        if where and where != "settled":
            lines.append((f"{where.capitalize()}: a change here wins.", "$warning"))
        if self._error:
            lines.append((clean(self._error[:1].upper() + self._error[1:]), "bold $error"))
        if file.broken:
            lines.append((clean(f"Nothing can be kept: {file.broken}"), "$error"))
        lines.append((f"● settled, in {shown_path(file.path)}", "$foreground 55%"))
        parts = [Content(text, [Span(0, len(text), style)] if style else []) for text, style in lines]
        self._words.update(Content("\n").join(parts))
        if isinstance(row.editor, Input) and not self._error:
            row.editor.remove_class("-invalid")
