"""The keys of the chat: action names, the user's key map, the footer, and the keys on a border."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.keys import Keys
from textual.screen import Screen
from textual.widgets import Footer, TextArea
from textual.widgets._footer import FooterKey

from slipstream.app.platform.safe_text import one_line
from slipstream.app.settings.file import nearest
from slipstream.models.errors import UsageError

NO_KEY: Final = "<none "  # prefix of the placeholder key of an action without keys
_SAME: Final = {"ctrl+i": "Tab", "ctrl+m": "Enter", "ctrl+h": "Backspace", "ctrl+j": "a new line"}
"""Keys that terminals cannot distinguish from others."""
_OTHER_NAMES: Final = {
    "pgup": "pageup", "pgdn": "pagedown", "pgdown": "pagedown", "esc": "escape", "del": "delete", "ins": "insert",
    "return": "enter", "control": "ctrl", "option": "alt", "meta": "alt",
}  # fmt: skip
_SHOWN: Final = {"pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc"}
_OF_THE_PROMPT: Final = frozenset(
    {"enter", "alt+enter", "tab", "escape", "space", "backspace", "delete", "up", "down", "left", "right", "ctrl+p"}
)
STAY: Final = frozenset({"f1", "escape", "ctrl+q"})  # default keys that are always shown: help, back or stop, and quit
STAYING: Final = frozenset({"app.help", "command('stop')", "app.quit", "unfold"})  # actions whose keys are shown, too


class ExtraKeys(Enum):
    """Keys that ``textual.keys.Keys`` lacks."""

    AltEnter = "alt+enter"


def teach_alt_enter() -> None:
    """Distinguishes Alt-Enter from Enter where a terminal sends it as escape and return, as most do.

    Textual 8.2.8 keeps the Alt of letters but not that of Enter.
    """
    sequences = cast(dict[str, Any], ANSI_SEQUENCES_KEYS)
    sequences.setdefault("\x1b\r", (ExtraKeys.AltEnter,))


def types_nothing(event: Key, screen: Screen[Any]) -> bool:
    """Whether a key is an unbound Alt with a character; an input would insert the character without Alt."""
    return event.key.startswith("alt+") and event.is_printable and event.key not in screen.active_bindings


def named(bindings: Iterable[Binding]) -> list[BindingType]:
    """Gives bindings their action's name as id, for settings, and priority over the focused widget's, except Esc."""
    return [replace(each, id=each.id or _name(each.action), priority=each.key != "escape") for each in bindings]


def shown(keys: str) -> str:
    """Formats keys for the screen: ``Ctrl-G, PgUp``."""
    return ", ".join(
        "-".join(_SHOWN.get(part, part.capitalize()) for part in key.split("+")) for key in keys.split(",")
    )


@dataclass(frozen=True, slots=True)
class KeyMap:
    """The keys of every action."""

    usual: Mapping[str, str]  # default keys by action, joined by commas
    titles: Mapping[str, str]  # what each action does
    own: Mapping[str, str]  # keys of the actions that the user changed; empty for no key
    problems: tuple[str, ...] = ()  # error messages about the user's keys; wrong keys are ignored

    @staticmethod
    def made(wanted: Mapping[str, str], bindings: Iterable[BindingType]) -> KeyMap:
        usual: dict[str, str] = {}
        titles: dict[str, str] = {}
        for binding in bindings:
            if isinstance(binding, Binding) and binding.id:
                titles.setdefault(binding.id, binding.description)
                both = [*usual.get(binding.id, "").split(","), *binding.key.split(",")]
                usual[binding.id] = ",".join(dict.fromkeys(filter(None, both)))
        free = {key for keys in usual.values() for key in keys.split(",")}
        own: dict[str, str] = {}
        problems: list[str] = []
        for action, keys in wanted.items():
            try:
                if action not in usual:
                    raise UsageError(f"there is no action {one_line(action)}.{nearest(action, usual)}")
                each = keys.split(",") if keys.strip() else []
                own[action] = ",".join(_checked(action, key, free) for key in each)
            except UsageError as error:
                problems.append(f"keys: {error.title}")
        for clash in iter(lambda: _clash(usual, own), None):
            mine, other, key = clash
            del own[mine]
            problems.append(f"keys: {shown(key)} is the key of both {mine} and {other}; {mine} keeps its own.")
        own = {action: keys for action, keys in own.items() if keys != usual[action]}
        return KeyMap(usual, titles, own, tuple(problems))

    @property
    def textual(self) -> dict[str, str]:
        """Textual's keymap. It cannot remove a key, so an action without one gets a key that no terminal sends."""
        return {action: keys or f"{NO_KEY}{action}>" for action, keys in self.own.items()}

    def of(self, action: str) -> str:
        return shown(self.own.get(action, self.usual[action]))

    def usual_of(self, action: str) -> str:
        return shown(self.usual[action])

    def now(self, words: str) -> str:
        """Replaces default keys, such as "Ctrl-Up, Ctrl-Down", by the current ones; drops removed keys."""
        actions = {shown(key): action for action, keys in self.usual.items() for key in keys.split(",")}
        parts = [self.of(actions[word]) if actions.get(word) in self.own else word for word in words.split(", ")]
        return ", ".join(filter(None, parts))


def _name(action: str) -> str:
    return action.split(".")[-1].split("(")[0].replace("_", "-")


def _clash(usual: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The first changed action, another action, and the key that both have; None if there is no conflict."""
    for mine, keys in own.items():
        for other in usual:
            taken = own.get(other, usual[other]).split(",")
            if key := next((key for key in keys.split(",") if key and other != mine and key in taken), None):
                return mine, other, key
    return None


def _checked(action: str, key: str, free: set[str]) -> str:
    """Spells a key as Textual does; raises ``UsageError`` if it is none or needed for typing, unless ``free``."""
    words = [_OTHER_NAMES.get(word, word) for word in re.split(r"[+-]", key.strip().casefold())]
    base, given = words[-1], set(words[:-1])
    spelled = "+".join([*(word for word in ("alt", "ctrl", "shift") if word in given), base])
    known = {each.value for each in Keys if not each.value.startswith("<")} | {each.value for each in ExtraKeys}
    bare = spelled.removeprefix("alt+") if "alt" in given else spelled
    if not given <= {"alt", "ctrl", "shift"} or not (bare in known or re.fullmatch(r"[a-z0-9]", bare)):
        raise UsageError(f"{one_line(key.strip()) or 'nothing'} is no key; write one as ctrl+g, alt+x, f6 or pageup.")
    if spelled == base and len(base) == 1:
        raise UsageError(f"{base} alone is what one types; add ctrl or alt, or take a function key.")
    if spelled in _SAME:
        raise UsageError(f"terminals send {shown(spelled)} as {_SAME[spelled]}; take another key for {action}.")
    if spelled not in free and (spelled in _OF_THE_PROMPT or spelled in _editing()):
        raise UsageError(f"{shown(spelled)} is needed for typing; take another key for {action}.")
    return spelled


def _editing() -> set[str]:
    bindings = (binding for binding in TextArea.BINDINGS if isinstance(binding, Binding))
    return {key for binding in bindings for key in binding.key.split(",")} - {"f7", "f6"}


class KeyBar(Footer):
    """A footer that cuts off no key: without enough room it becomes compact, then drops the last keys.

    While a widget with ``own_keys = True``, or one inside it, has the focus, it shows only that widget's keys.
    """

    def __init__(self) -> None:
        super().__init__(show_command_palette=False)

    def compose(self) -> ComposeResult:
        every = [each for each in super().compose() if isinstance(each, FooterKey)]
        nearest = self._nearest()
        keys = [each for each in every if not each.key.startswith(NO_KEY)]
        keys = [each for each in keys if nearest is None or each.action in nearest or _stays(each)]
        room = self.size.width - 1
        widths = [len(key.key_display) + len(key.description) + 3 for key in keys]  # " key words "
        self.compact = sum(widths) > room
        if not self.compact:
            yield from keys
            return
        room -= sum(width - 1 for key, width in zip(keys, widths, strict=True) if _stays(key))
        for key, width in zip(keys, widths, strict=True):
            fits = width - 1 <= room
            if not _stays(key) and fits:
                room -= width - 1
            if _stays(key) or fits:
                yield key

    def _nearest(self) -> set[str] | None:
        """The actions of the focused widget with ``own_keys``; None if there is none."""
        nodes = self.screen.focused.ancestors_with_self if self.screen.focused else ()
        part = next((node for node in nodes if getattr(node, "own_keys", False)), None)
        if part is None:
            return None
        active = self.screen.active_bindings.values()
        return {each.binding.action for each in active if part in each.node.ancestors_with_self}

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.recompose)


def _stays(key: FooterKey) -> bool:
    return bool(STAY & set(key.key.split(","))) or key.action in STAYING
