"""Toasts that tell in passing, for as long as they take to read."""

from __future__ import annotations

from typing import Final

from textual.widget import Widget

from slipstream.app.safe_text import clean, sentence
from slipstream.models.errors import SlipstreamError

NOTICED: Final = 1.2
"""Seconds until a toast is noticed."""
READ: Final = 0.045
"""Seconds to read a character."""
TROUBLE: Final = 8.0
"""Seconds that an error stays."""


def hint(on: Widget, words: str) -> None:
    """Says something in passing; it takes the place of all toasts, for the newest is the one that counts."""
    on.app.clear_notifications()
    on.notify(clean(words), timeout=NOTICED + READ * len(words), markup=False)


def trouble(on: Widget, error: SlipstreamError) -> None:
    """Says what failed, and what to try next."""
    on.notify(sentence(f"{error.title} {error.hint}"), severity="error", timeout=TROUBLE, markup=False)
