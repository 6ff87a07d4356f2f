"""The speed-ups as bars in a terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TextIO

from slipstream.app.bench.figures import DrafterFigures
from slipstream.app.bench.intervals import Ratio
from slipstream.app.engine.choice import PLAIN
from slipstream.app.safe_text import one_line

_LEAST_BAR: Final = 12
_NAME: Final = 20  # a joined drafter's name may be longer: it is cut
_ELSEWHERE: Final = 100  # columns where the output is no terminal


@dataclass(frozen=True, slots=True)
class Style:
    """How bars are drawn.

    Attributes:
        width: Columns.
        bar: A bar up to its interval.
        low: The interval's lower end.
        line: Inside the interval.
        dot: The value.
        high: The interval's upper end.
        plain: Plain decoding's speed, on blank ground.
        crossed: The same inside the interval.
        color: Whether gains are green and losses red.
        fenced: Whether a Markdown fence stands around it, as where the tables go to a file.
    """

    width: int = _ELSEWHERE
    bar: str = "█"
    low: str = "├"
    line: str = "─"
    dot: str = "●"
    high: str = "┤"
    plain: str = "│"
    crossed: str = "┼"
    color: bool = False
    fenced: bool = False

    @staticmethod
    def of(stream: TextIO) -> Style:
        """The style that a stream can show: its width, its characters, and color unless NO_COLOR says no."""
        terminal = stream.isatty()
        width = shutil.get_terminal_size((_ELSEWHERE, 24)).columns if terminal else _ELSEWHERE
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        try:
            "█├─●┤│┼".encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return Style(width, "#", "[", "-", "o", "]", "|", "+", color, not terminal)
        return Style(width, color=color, fenced=not terminal)


def chart(rows: Sequence[DrafterFigures], style: Style) -> str:
    """Draws a bar for each drafter, kind of text and temperature, from 0 to its speed-up, with its interval.

    Args:
        rows: The figures; plain decoding's own are left out, it is the line at 1x.
        style: How.
    """
    rows = [row for row in rows if row.drafter != PLAIN]
    if not rows:
        return ""
    names = min(_NAME, max(len(row.drafter) for row in rows))
    texts = max(len(row.speedup.text()) for row in rows)
    room = max(_LEAST_BAR, style.width - names - texts - 6)
    most = max(1.0, *(row.speedup.high or row.speedup.value for row in rows))
    lines = ["", "speed-up over plain decoding, with 95 % intervals", *(["", "```text"] if style.fenced else [])]
    for (kind, temperature), group in groupby(rows, lambda row: (row.kind, row.temperature)):
        lines += ["", f"{one_line(kind)}, T {temperature:g}"[: style.width]]
        for row in group:
            label = f"  {row.drafter[:names]:<{names}}  {row.speedup.text():<{texts}}"
            lines.append(_colored(f"{label}  {_bar(row.speedup, most, room, style)}".rstrip(), row.speedup, style))
    lines += [" " * (names + texts + 6) + _axis(most, room), *(["```"] if style.fenced else [])]
    return "\n".join(lines)


def _bar(ratio: Ratio, most: float, room: int, style: Style) -> str:
    """One bar of ``room`` columns for 0 to ``most``."""

    def column(value: float) -> int:
        return min(room - 1, round(value / most * (room - 1)))

    cells = [" "] * room
    low, high = column(ratio.value if ratio.low is None else ratio.low), column(ratio.high or ratio.value)
    cells[column(1.0)] = style.plain
    cells[:low] = [style.bar] * low
    for at in range(low, high + 1):
        cells[at] = style.crossed if at == column(1.0) else style.line
    if ratio.low is not None:
        cells[low], cells[high] = style.low, style.high
    cells[column(ratio.value)] = style.dot
    return "".join(cells)


def _axis(most: float, room: int) -> str:
    """The scale: each whole number that has room."""
    cells = [" "] * (room + 3)
    every = max(1, round(most / (room / 8)))
    for value in (*range(0, int(most) + 1, every), *([1] if every > 1 else [])):
        at = min(room - 1, round(value / most * (room - 1)))
        cells[at : at + len(f"{value}x")] = f"{value}x"
    return "".join(cells).rstrip()


def _colored(line: str, ratio: Ratio, style: Style) -> str:
    """Green where the whole interval is a gain, red where all of it is a loss."""
    if not style.color or ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return line
    return f"\x1b[{32 if ratio.low > 1 else 31}m{line}\x1b[0m"
