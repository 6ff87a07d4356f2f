"""How full the context is: a small bar and two numbers."""

from __future__ import annotations

from textual.content import Content

from slipstream.app.tui.figures import bar

CELLS = 8
NEAR = 0.8
"""Share of the context from which on the bar warns."""
FULL = 0.95


def gauge(used: int, n_ctx: int, cells: int = CELLS) -> Content:
    """Draws it.

    Args:
        used: Tokens that the chat takes, what is typed included.
        n_ctx: Tokens that the context holds.
        cells: Columns of the bar; 0 for numbers alone.
    """
    share = used / max(n_ctx, 1)
    style = "$error" if share >= FULL else "$warning" if share >= NEAR else "$primary"
    done, rest = bar(share, cells)
    if used and cells and not done:
        done, rest = rest[:1].replace("─", "━"), rest[1:]
    drawn = Content.assemble((done, style), (rest, "$foreground 30%"), " " if cells else "")
    words = f"{used:,} / {n_ctx:,}{' too long' if used >= n_ctx else ''}"
    return drawn.append(Content(words).stylize(f"bold {style}" if share >= NEAR else "$foreground 70%"))
