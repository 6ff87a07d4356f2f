"""Makes untrusted strings fit for a one-line message: printable and short."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # every command loads this file at its start
    from pathlib import Path


def quoted(text: str | bytes, limit: int = 40) -> str:
    """Quotes a string from a file: one line, control characters escaped, at most ``limit`` characters of it."""
    shown = repr(text[:limit])
    return shown + "…" if len(text) > limit else shown


def shown_path(path: str | Path) -> str:
    """Returns a path as it is when it prints well, quoted and escaped when it does not."""
    text = str(path)
    return text if text.isprintable() and text else repr(text)
