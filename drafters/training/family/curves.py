"""Loss curves as a picture: one panel a run, in SVG."""

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _MARGIN, _COLUMNS = 300, 200, 42, 3
_COLOURS = (("loss", "#2f6fb5", "in training"), ("held_out", "#c4572b", "held out"))


def curves(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Draws the runs.

    Args:
        runs: by title, entries with ``tokens``, ``loss`` and ``held_out``.
    """
    rows = -(-len(runs) // _COLUMNS)
    panels = [
        f'<g transform="translate({i % _COLUMNS * _WIDTH},{i // _COLUMNS * _HEIGHT})">{_panel(title, entries)}</g>'
        for i, (title, entries) in enumerate(runs.items())
    ]
    size = f'width="{_COLUMNS * _WIDTH}" height="{rows * _HEIGHT}"'
    style = "font-family='sans-serif' font-size='10' fill='#333'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {style}><rect width='100%' height='100%' fill='white'/>" + (
        "".join(panels) + "</svg>\n"
    )


def _panel(title: str, entries: Sequence[Mapping[str, float]]) -> str:
    most = max(entry["tokens"] for entry in entries)
    values = [entry[name] for entry in entries[1:] or entries for name, _, _ in _COLOURS]
    low, high = min(values), max(values)
    span = max(high - low, 1e-9)

    def at(tokens: float, value: float) -> str:
        x = _MARGIN + tokens / most * (_WIDTH - _MARGIN - 12)
        y = 24 + (high - min(value, high)) / span * (_HEIGHT - 24 - _MARGIN)
        return f"{x:.1f},{y:.1f}"

    parts = [f"<text x='{_MARGIN}' y='14' font-size='12'>{escape(title)}</text>"]
    for name, colour, label in _COLOURS:
        points = " ".join(at(entry["tokens"], entry[name]) for entry in entries)
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.2'/>")
        place = _WIDTH - 70, 34 + 12 * (name == "held_out")
        parts.append(f"<text x='{place[0]}' y='{place[1]}' fill='{colour}'>{label}</text>")
    bottom = _HEIGHT - _MARGIN
    parts.append(f"<path d='M{_MARGIN},24 V{bottom} H{_WIDTH - 12}' fill='none' stroke='#999'/>")
    for value in (low, (low + high) / 2, high):
        y = float(at(0, value).split(",")[1])
        parts.append(f"<text x='{_MARGIN - 4}' y='{y + 3:.1f}' text-anchor='end'>{value:.2f}</text>")
    for share in (0.0, 0.5, 1.0):
        x = float(at(share * most, low).split(",")[0])
        parts.append(
            f"<text x='{x:.1f}' y='{bottom + 14}' text-anchor='middle'>{share * most / 1e6:.1f} M tokens</text>"
        )
    return "".join(parts)
