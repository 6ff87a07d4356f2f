"""A repository's card: Markdown from a stranger, shown inert and never for long at a time."""

from __future__ import annotations

import asyncio

from textual import work
from textual.widgets import Markdown

from slipstream.app.safe_text import clean

LONGEST = 12_000
"""Characters of a card that are shown."""
MOST_LINES = 400
"""Lines of a card that are shown: each may become a widget."""
MOST_CELLS = 600
"""Cells of tables; lines beyond are shown as text. A table of 8,000 cells takes Textual 8.2.8 half a minute."""
PIECE = 1_200
"""Characters that are laid out at a time; keys are heard in between."""
REST = "*The rest is on its page.*"
NONE = "*It has no card.*"


class Card(Markdown):
    """Markdown whose links only tell that they were clicked."""

    def __init__(self) -> None:
        """Begins empty."""
        super().__init__("", open_links=False)

    @work(exclusive=True, group="card")
    async def show(self, card: str) -> None:
        """Lays a card out piece by piece."""
        for piece in pieces(card):
            await self.append(f"{piece}\n\n")
            await asyncio.sleep(0)


def pieces(card: str) -> list[str]:
    """Cuts a card at its paragraphs into pieces that are quick to lay out, and leaves out what is too much."""
    lines = clean(card)[:LONGEST].split("\n")
    whole = len(card) <= LONGEST and len(lines) <= MOST_LINES
    lines = lines[:MOST_LINES] if whole else lines[: min(MOST_LINES, len(lines) - 1)] or [lines[0][:PIECE]]
    cells = 0
    for at, line in enumerate(lines):
        cells += line.count("|")
        if cells > MOST_CELLS:
            lines[at] = line.replace("|", "¦")
    found = [""]
    for paragraph in "\n".join(lines).split("\n\n"):
        if len(found[-1]) + len(paragraph) > PIECE:
            found.append("")
        found[-1] = f"{found[-1]}\n\n{paragraph}" if found[-1] else paragraph
    if not whole:
        found.append(REST)
    return found if any(piece.strip() for piece in found) else [NONE]
