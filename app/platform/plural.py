"""Counts in words."""

from __future__ import annotations


def plural(count: int, noun: str, several: str = "") -> str:
    """A count: "1 token", "2 tokens".

    Args:
        count: How many.
        noun: The noun for one.
        several: The noun for more, if it is not ``noun`` and an "s".
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or f'{noun}s'}"
