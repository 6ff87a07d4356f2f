"""The keys of a sheet, on its lower edge."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from textual.markup import escape

_KEYS: Final = MappingProxyType({"Enter": "enter", "Esc": "escape", "^y": "ctrl+y"})


def sheet_keys(*words: str) -> str:
    """What keys do, for a border; a click presses them, but for those that a mouse has no need of.

    Args:
        words: Each begins with its key, as "Enter runs".
    """
    return " · ".join(map(_part, words))


def _part(words: str) -> str:
    key = _KEYS.get(words.split()[0])
    return f"[@click=app.simulate_key('{key}')]{escape(words)}[/]" if key else escape(words)
