"""The keys of a sheet, on its lower edge."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from textual.markup import escape

_KEYS: Final = MappingProxyType({"Enter": "enter", "Esc": "escape", "Space": "space", "^y": "ctrl+y"})


def sheet_keys(*words: str) -> str:
    """What keys do, for a border; a click presses them.

    Args:
        words: Each begins with its key, as "Enter runs".
    """
    parts = (f"[@click=app.simulate_key('{_KEYS[each.split()[0]]}')]{escape(each)}[/]" for each in words)
    return " · ".join(parts)
