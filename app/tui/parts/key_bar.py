"""The footer, which shows as many keys as fit; and the keys on a dialog's lower border."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.markup import escape
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

from slipstream.app.tui.keys import NO_KEY

STAY: Final = frozenset({"f1", "escape", "ctrl+q"})
"""Default keys that are always shown: help, back or stop, and quit."""
STAYING: Final = frozenset({"app.help", "command('stop')", "app.quit"})  # their actions, which may have other keys
_KEYS: Final = MappingProxyType({"Enter": "enter", "Esc": "escape", "^y": "ctrl+y"})


class KeyBar(Footer):
    """A footer that cuts off no key: without enough room it becomes compact, then drops the last keys.

    While a widget with ``own_keys = True``, or one inside it, has the focus, it shows only that widget's keys.
    """

    def __init__(self) -> None:
        """Hides the palette's key; the help lists it."""
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


def sheet_keys(*words: str) -> str:
    """Formats keys for a border; a click on one of ``_KEYS`` simulates the key.

    Args:
        words: Each begins with its key, for example "Enter runs".
    """
    return " · ".join(map(_part, words))


def _part(words: str) -> str:
    key = _KEYS.get(words.split()[0])
    return f"[@click=app.simulate_key('{key}')]{escape(words)}[/]" if key else escape(words)
