"""Draws speed-ups as bars: in a terminal, and as an SVG for light and dark backgrounds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from math import ceil
from typing import Final, Literal, TextIO

from slipstream.app.bench.figures import QUIET, DrafterFigures, Noise
from slipstream.app.bench.intervals import Interval
from slipstream.app.platform.safe_text import one_line
from slipstream.app.protocol.requests import PLAIN
from slipstream.app.speed import GAIN, judged

_LEAST_BAR: Final = 12
_NAME: Final = 20  # maximum columns of a name; longer names of combinations are cut
_ELSEWHERE: Final = 100  # columns if the output is not a terminal
Verdict = Literal["idle", "even", "gain", "loss"]
_COLORS: Final = {"idle": 90, "gain": 32, "loss": 31}
_WIDTH: Final = 760
_LEFT: Final = 150  # names
_RIGHT: Final = 150  # figures
_ROW: Final = 20
_APART: Final = 32  # pixels between two numbers of the scale
_NAME_WIDTH: Final = 22  # maximum characters of a drafter's name
_TOP: Final = 32
_MARKS: Final = "█├─┤●│┼"
_TITLE: Final = "Speed-up over plain decoding"
_LOOKS: Final = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.title { font-size: 15px; font-weight: 600 } .kind { font-weight: 600 } .small { fill: #57606a }
.gain { fill: #2da44e } .loss { fill: #cf5b56 } .even { fill: #8c959f }
.grid { stroke: #8c959f; stroke-opacity: .3 } .plain { stroke: #57606a; stroke-dasharray: 4 3 }
.whisker { stroke: #24292f; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9da7b3 } .plain { stroke: #9da7b3 } .whisker { stroke: #e6edf3 }
}
"""


@dataclass(frozen=True, slots=True)
class Style:
    """The characters and colours of a chart."""

    width: int = _ELSEWHERE  # columns
    # a bar up to its interval, the interval's begin, inside and end, the value, plain decoding outside and inside it
    marks: str = _MARKS
    color: bool = False  # whether gains are green and losses red
    fenced: bool = False  # whether it is in a Markdown fence, for output to a file

    @staticmethod
    def of(stream: TextIO) -> Style:
        """The style for a stream: its width, its characters, and colours unless NO_COLOR is set."""
        terminal = stream.isatty()
        width = shutil.get_terminal_size((_ELSEWHERE, 24)).columns if terminal else _ELSEWHERE
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        marks = _MARKS
        try:
            marks.encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            marks = "#[-]o|+"
        return Style(width, marks, color=color, fenced=not terminal)


def chart(rows: Sequence[DrafterFigures], style: Style, noise: Noise = QUIET) -> str:
    """Draws a bar with its interval for each drafter, kind of text and temperature; plain decoding is a line at 1x."""
    rows = [row for row in rows if row.drafter != PLAIN]
    if not rows:
        return ""
    names = min(_NAME, max(len(row.drafter) for row in rows))
    texts = max(len(row.speedup_text) for row in rows)
    room = max(_LEAST_BAR, style.width - names - texts - 6)
    most = max([1.0, *_ends(rows)])
    lines = ["", "speed-up over plain decoding, with 95 % intervals", *(["", "```text"] if style.fenced else [])]
    for (kind, temperature), group in groupby(rows, lambda row: (row.kind, row.temperature)):
        lines += ["", f"{one_line(kind)}, T {temperature:g}"[: style.width]]
        for row in group:
            label = f"  {row.drafter[:names]:<{names}}  {row.speedup_text:<{texts}}"
            drawn = _bar(row.gain, most, room, style) if row.gain else ""
            color = _COLORS.get(verdict(row, noise)) if style.color else None
            line = f"{label}  {drawn}".rstrip()
            lines.append(f"\x1b[{color}m{line}\x1b[0m" if color else line)
    lines += [" " * (names + texts + 6) + _axis(most, room), *(["```"] if style.fenced else [])]
    return "\n".join(lines)


def _ends(rows: Iterable[DrafterFigures]) -> list[float]:
    return [row.gain.high or row.gain.value for row in rows if row.gain]


def _bar(ratio: Interval, most: float, room: int, style: Style) -> str:

    def column(value: float) -> int:
        return min(room - 1, round(value / most * (room - 1)))

    cells = [" "] * room
    low, high = column(ratio.value if ratio.low is None else ratio.low), column(ratio.high or ratio.value)
    bar, begin, line, end, dot, plain, crossed = list(style.marks)
    cells[column(1.0)] = plain
    cells[:low] = [bar] * low
    for at in range(low, high + 1):
        cells[at] = crossed if at == column(1.0) else line
    if ratio.low is not None:
        cells[low], cells[high] = begin, end
    cells[column(ratio.value)] = dot
    return "".join(cells)


def _axis(most: float, room: int) -> str:
    cells = [" "] * (room + 3)
    every = max(1, round(most / (room / 8)))
    for value in (*range(0, int(most) + 1, every), *([1] if every > 1 else [])):
        at = min(room - 1, round(value / most * (room - 1)))
        cells[at : at + len(f"{value}x")] = f"{value}x"
    return "".join(cells).rstrip()


def verdict(row: DrafterFigures, noise: Noise = QUIET) -> Verdict:
    """Whether all of the interval and the value beyond the noise are a gain or a loss; without drafts it is "idle"."""
    ratio = row.gain
    if ratio is None:
        return "idle"
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return "even"
    if 1 / noise.spread < ratio.value < noise.spread or row.tokens_per_step < GAIN < ratio.value:
        return "even"  # so few right guesses cannot make it faster
    return judged(ratio.value)


@dataclass(frozen=True, slots=True)
class ChartSection:
    """The bars of one model."""

    note: str  # the model and the machine
    rows: Sequence[DrafterFigures]  # plain decoding's rows are not drawn; it is the dashed line at 1x
    noise: Noise = QUIET


def chart_svg(sections: Sequence[ChartSection]) -> str:
    """Draws the bars of ``chart`` as an SVG, with whiskers for the intervals, one model below the other on one scale.

    The background is transparent; text and lines follow the reader's light or dark scheme.
    """
    kept = [replace(each, rows=[row for row in each.rows if row.drafter != PLAIN]) for each in sections]
    most = max([1.2, *(1.05 * end for each in kept for end in _ends(each.rows))])
    parts, y = list[str](), _TOP
    for section in kept:
        parts.append(_text(12, y + 14, f"{one_line(section.note)}; lines are 95 % intervals", "small"))
        y += _ROW + 4
        for (kind, temperature), group in groupby(section.rows, lambda row: (row.kind, row.temperature)):
            parts.append(_text(12, y + 14, f"{one_line(kind)}, temperature {temperature:g}", "kind"))
            y += _ROW + 2
            for row in group:
                parts += _svg_bar(row, y, most, verdict(row, section.noise))
                y += _ROW
            y += 8
    height = y + 26
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}"'
            f' width="{_WIDTH}" height="{height}">',
            f"<title>{_TITLE}</title>",
            f"<style>{_LOOKS}</style>",
            _text(12, 22, _TITLE, "title"),
            *_grid(most, y),
            *parts,
            "</svg>\n",
        ]
    )


def _svg_bar(row: DrafterFigures, y: int, most: float, found: Verdict) -> list[str]:
    ratio, middle = row.gain, y + _ROW // 2
    parts = [
        _text(_LEFT - 8, middle + 4, row.drafter[:_NAME_WIDTH], "", ' text-anchor="end"'),
        _text(_WIDTH - _RIGHT + 8, middle + 4, row.speedup_text, ""),
    ]
    if ratio is None:
        return parts
    parts.append(
        f'<rect class="{found}" x="{_LEFT}" y="{y + 3}" width="{_x(ratio.value, most) - _LEFT:.1f}"'
        f' height="{_ROW - 6}" rx="2"/>'
    )
    if ratio.low is not None and ratio.high is not None:
        low, high = _x(ratio.low, most), _x(ratio.high, most)
        parts.append(
            f'<path class="whisker" fill="none" d="M{low:.1f} {middle - 4}v8M{low:.1f} {middle}H{high:.1f}'
            f'M{high:.1f} {middle - 4}v8"/>'
        )
    return parts


def _grid(most: float, bottom: int) -> list[str]:
    parts = []
    every = max(1, ceil(most / 8))
    for value in sorted({*range(0, int(most) + 1, every), 1}):
        x = _x(value, most)
        kind = "plain" if value == 1 else "grid"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + _ROW}" y2="{bottom}"/>')
        name = "plain" if value == 1 else f"{value}x"
        if value == 1 or abs(x - _x(1, most)) > _APART:
            parts.append(_text(round(x), bottom + 16, name, "small", ' text-anchor="middle"'))
    return parts


def _x(value: float, most: float) -> float:
    return _LEFT + value / most * (_WIDTH - _LEFT - _RIGHT)


def _text(x: int, y: int, words: str, kind: str, more: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + more
    return f'<text x="{x}" y="{y}"{more}>{escape(words, quote=False)}</text>'
