"""A table that drops its least important columns on a narrow screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column."""

    title: str
    rank: int = 0  # the highest rank is dropped first; rank 0 is never dropped
    right: bool = False  # whether it is right-aligned
    style: str = ""  # style of its cells


def table(columns: Sequence[Column], rows: Sequence[Sequence[Content]], width: int) -> list[Content]:
    """Lays out rows; the first column takes the remaining width, and shrinks first.

    Args:
        columns: The columns; the first is the name.
        width: Cells of the screen.

    Returns:
        The heading, then one line per row.
    """
    wide = [max([len(column.title), *(row[at].cell_length for row in rows)]) for at, column in enumerate(columns)]
    shown = [at for at in range(len(columns)) if at == 0 or any(row[at].plain for row in rows)]
    least = min(wide[0], max(18, width // 3))
    while len(shown) > 1 and least + sum(wide[at] + GAP for at in shown[1:]) > width:
        last = max(shown[1:], key=lambda at: (columns[at].rank, at))
        if not columns[last].rank:
            break
        shown.remove(last)
    room = max(width - sum(wide[at] + GAP for at in shown[1:]), 4)
    wide[0] = min(room, max(wide[0], min(room, 34)))
    heading = [Content(column.title) for column in columns]
    lines = [_line(columns, heading, wide, shown).stylize("$foreground 50%")]
    styled = [
        [cell.stylize(column.style) if column.style else cell for cell, column in zip(row, columns, strict=True)]
        for row in rows
    ]
    return lines + [_line(columns, row, wide, shown) for row in styled]


def _line(columns: Sequence[Column], cells: Sequence[Content], wide: Sequence[int], shown: Sequence[int]) -> Content:
    parts = []
    for at in shown:
        cell = cells[at].truncate(wide[at], ellipsis=True)
        space = Content(" " * (wide[at] - cell.cell_length))
        parts.append(space.append(cell) if columns[at].right else cell.append(space))
    return Content(" " * GAP).join(parts)
