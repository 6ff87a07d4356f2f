"""A speed-up as a bar."""

from __future__ import annotations

from typing import Final

from textual.content import Content

from slipstream.app.speed import GAIN, LOSS

STYLES: Final = {"gain": "$success", "loss": "$error", "even": "$foreground 70%", "idle": "$foreground 45%"}


def judged(ratio: float) -> str:
    """The key of ``STYLES`` for a speed-up whose interval is not known."""
    return "gain" if ratio >= GAIN else "loss" if ratio < LOSS else "even"


def gain_bar(value: float, most: float, width: int, style: str, high: float | None = None) -> Content:
    """A bar from 0 to a speed-up; a tick stands at 1x, the speed without a drafter.

    Args:
        value: The speed-up.
        most: The speed-up that fills the width, at least 1.
        width: Columns.
        style: Style of the bar.
        high: Upper end of its interval, drawn as a thin line.
    """
    scale = width / most
    tick, end = min(width - 1, round(scale)), min(width, max(1, round(value * scale)))
    far = end if high is None else min(width, max(end, round(high * scale)))
    bar = Content("━" * end + "─" * (far - end)).stylize(style)
    if far <= tick:
        return bar.append(Content(" " * (tick - far))).append(Content("│").stylize("$foreground 55%"))
    return bar[:tick].append(Content("│").stylize("$foreground")).append(bar[tick + 1 :])
