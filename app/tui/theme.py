"""The two colour themes."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="slipstream-dark",
    dark=True,
    primary="#56d4c4",
    secondary="#82aaff",
    accent="#ffb86b",
    warning="#ffcb6b",
    error="#ff7a85",
    success="#9ece6a",
    foreground="#d3dae3",
    background="#0f141a",
    surface="#161d25",
    panel="#1f2832",
    variables={
        "footer-background": "#0f141a",
        "footer-key-foreground": "#56d4c4",
        "footer-description-foreground": "#8793a1",
        "block-cursor-background": "#24414a",
        "block-cursor-foreground": "#e8eef4",
        "block-cursor-text-style": "bold",
        "scrollbar": "#2a3540",
        "scrollbar-background": "#0f141a",
        "scrollbar-corner-color": "#0f141a",
        "border": "#56d4c4",
        "border-blurred": "#2a3540",
    },
)
LIGHT = Theme(
    name="slipstream-light",
    dark=False,
    primary="#00766c",
    secondary="#2f5fd0",
    accent="#b35900",
    warning="#8f6a00",
    error="#c22f3d",
    success="#3d7a1c",
    foreground="#242a31",
    background="#fbfaf7",
    surface="#f1efe9",
    panel="#e6e3da",
    variables={
        "footer-background": "#fbfaf7",
        "footer-key-foreground": "#00766c",
        "footer-description-foreground": "#5d6670",
        "block-cursor-background": "#cfe6e2",
        "block-cursor-foreground": "#14181d",
        "block-cursor-text-style": "bold",
        "scrollbar": "#cdc9be",
        "scrollbar-background": "#fbfaf7",
        "scrollbar-corner-color": "#fbfaf7",
        "border": "#00766c",
        "border-blurred": "#cdc9be",
    },
)
