"""The colour themes: dark, light and high contrast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from textual.theme import Theme

NAMES: Final = (
    "primary", "secondary", "accent", "warning", "error", "success", "foreground", "background", "surface", "panel",
    "faint", "keys", "cursor", "cursor-text",
)  # fmt: skip


def _theme(name: str, colours: str, dark: bool = True, own: Mapping[str, str] = {}) -> Theme:
    """A theme of a colour for each of ``NAMES``: Textual's, then borders, the footer's words and the cursor."""
    of: dict[str, Any] = dict(zip(NAMES, colours.split(), strict=True))
    variables = {
        "footer-background": of["background"],
        "footer-key-foreground": of["primary"],
        "footer-description-foreground": of["keys"],
        "block-cursor-background": of["cursor"],
        "block-cursor-foreground": of["cursor-text"],
        "block-cursor-text-style": "bold",
        "scrollbar": of["faint"],
        "scrollbar-background": of["background"],
        "scrollbar-corner-color": of["background"],
        "border": of["primary"],
        "border-blurred": of["faint"],
    }
    return Theme(name, dark=dark, variables={**variables, **own}, **{each: of[each] for each in NAMES[:10]})


DARK: Final = _theme(
    "slipstream-dark",
    "#56d4c4 #82aaff #ffb86b #ffcb6b #ff7a85 #9ece6a #d3dae3 #0f141a #161d25 #1f2832 #2a3540 #8793a1 #24414a #e8eef4",
)
LIGHT: Final = _theme(
    "slipstream-light",
    "#00766c #2f5fd0 #b35900 #8f6a00 #c22f3d #3d7a1c #242a31 #fbfaf7 #f1efe9 #e6e3da #cdc9be #5d6670 #cfe6e2 #14181d",
    dark=False,
)
CONTRAST: Final = _theme(
    "slipstream-contrast",
    "#00ffff #9fc5ff #ffb000 #ffff00 #ff9a9a #5dff5d #ffffff #000000 #000000 #1c1c1c #b0b0b0 #ffffff #ffffff #000000",
    own={"text-muted": "#e0e0e0", "scrollbar": "#ffffff", "border": "#ffffff"},
)
