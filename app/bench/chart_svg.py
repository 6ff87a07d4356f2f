"""The speed-ups as a picture: an SVG that is readable on light and on dark ground."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import Final
from xml.sax.saxutils import escape

from slipstream.app.bench.figures import DrafterFigures
from slipstream.app.bench.intervals import Ratio
from slipstream.app.safe_text import one_line
from slipstream.drafters.none import Plain

_WIDTH: Final = 760
_LEFT: Final = 150  # names
_RIGHT: Final = 150  # figures
_ROW: Final = 20
_APART: Final = 32  # pixels between two numbers of the scale
_NAME: Final = 22  # characters of a drafter's name that have room
_TOP: Final = 32
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
class Section:
    """The bars of one model.

    Attributes:
        note: What was measured: the model and the machine.
        rows: The figures; plain decoding's own are left out, it is the dashed line at 1x.
    """

    note: str
    rows: Sequence[DrafterFigures]


def chart_svg(sections: Sequence[Section]) -> str:
    """Draws what ``chart.chart`` draws, with whiskers for the intervals, one model below the other on one scale.

    The ground is left transparent; text and lines follow the reader's light or dark scheme.
    """
    kept = [Section(each.note, [row for row in each.rows if row.drafter != Plain.name]) for each in sections]
    most = max([1.2, *(1.05 * (row.speedup.high or row.speedup.value) for each in kept for row in each.rows)])
    parts, y = list[str](), _TOP
    for section in kept:
        parts.append(_text(12, y + 14, f"{one_line(section.note)}; lines are 95 % intervals", "small"))
        y += _ROW + 4
        for (kind, temperature), group in groupby(section.rows, lambda row: (row.kind, row.temperature)):
            parts.append(_text(12, y + 14, f"{one_line(kind)}, temperature {temperature:g}", "kind"))
            y += _ROW + 2
            for row in group:
                parts += _bar(row, y, most)
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


def _bar(row: DrafterFigures, y: int, most: float) -> list[str]:
    ratio, middle = row.speedup, y + _ROW // 2
    parts = [
        _text(_LEFT - 8, middle + 4, row.drafter[:_NAME], "", ' text-anchor="end"'),
        f'<rect class="{_verdict(ratio)}" x="{_LEFT}" y="{y + 3}" width="{_x(ratio.value, most) - _LEFT:.1f}"'
        f' height="{_ROW - 6}" rx="2"/>',
        _text(_WIDTH - _RIGHT + 8, middle + 4, ratio.text(), ""),
    ]
    if ratio.low is not None and ratio.high is not None:
        low, high = _x(ratio.low, most), _x(ratio.high, most)
        parts.append(
            f'<path class="whisker" fill="none" d="M{low:.1f} {middle - 4}v8M{low:.1f} {middle}H{high:.1f}'
            f'M{high:.1f} {middle - 4}v8"/>'
        )
    return parts


def _grid(most: float, bottom: int) -> list[str]:
    """A line and a number for each whole step, and the dashed line of plain decoding."""
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


def _verdict(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None or ratio.low <= 1 <= ratio.high:
        return "even"
    return "gain" if ratio.low > 1 else "loss"


def _text(x: int, y: int, words: str, kind: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}{more}>{escape(words)}</text>'
