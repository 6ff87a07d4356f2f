"""Sizes, counts and times of models in words, the same on every screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # figures are shown before anything is predicted
    from slipstream.models.memory.speed import Prediction

_STEPS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def size(count: float) -> str:
    """Formats bytes in the decimal units that model pages use: "812 B", "9.8 MB", "5.0 GB", "42 GB"."""
    for letter, unit in _STEPS:
        if count >= 0.9995 * unit:
            return f"{_short(count / unit)} {letter}B"
    return f"{count:.0f} B"


def number(count: int) -> str:
    """Formats a count: "812", "3.4k", "12k", "1.2M"."""
    for letter, unit in _STEPS[1:]:
        if count >= 0.9995 * unit:
            return f"{_short(count / unit)}{letter if letter != 'G' else 'B'}"
    return f"{count}"


def parameters(count: int) -> str:
    """Formats a model's number of parameters: "7.1M", "600M", "8.2B"; empty if it is unknown."""
    return number(count) if count else ""


def context(tokens: int) -> str:
    """Formats a context: "1,024", "32k", "1M"; empty if it is unknown."""
    if not tokens:
        return ""
    for letter, unit in (("M", 1 << 20), ("k", 1 << 10)):
        if tokens >= 4 * 1024 and tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else f"{tokens:,}"


def rate(tok_per_s: float) -> str:
    """Tokens a second: "8.4", "84", "1,210"."""
    return f"{tok_per_s:.1f}" if tok_per_s < 20 else f"{tok_per_s:,.0f}"


def rates(first: float, second: float) -> tuple[str, str]:
    """Two speeds that are compared, with as many digits: "19.8", "20.3"."""
    digits = 1 if min(first, second) < 20 else 0
    return f"{first:,.{digits}f}", f"{second:,.{digits}f}"


def at_most(tok_per_s: float, sure: bool = True) -> str:
    """A limit of tokens a second, in two digits at most: "up to 13"; "about 190" if a busy machine was measured."""
    unit: int = 10 ** max(0, len(f"{tok_per_s:.0f}") - 2)
    number = f"{tok_per_s:.1f}" if tok_per_s < 2 else f"{unit * round(tok_per_s / unit):,}"
    return f"{'up to' if sure else 'about'} {number}"


def speed(predicted: Prediction) -> str:
    """Tokens a second, as its replies measured them, or a predicted limit."""
    if predicted.basis == "replies":
        return rate(predicted.tok_per_s)
    return at_most(predicted.tok_per_s, predicted.basis != "busy")


def left(seconds: float) -> str:
    """Remaining time: "8 s", "6 min", "1 h 20 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 10 and minutes else f"{hours} h"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"
