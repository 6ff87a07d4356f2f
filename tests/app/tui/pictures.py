"""Pictures of a screen as SVG or text, alike on every machine: measured times and folders are masked."""

import io
import re
import string
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.segment import Segment, Segments
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Input, TextArea

_FORMAT: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ display: none; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""  # rich's, without fonts from the network
_MASK: Final = "N ms"
_TIMES: Final = re.compile(r"\d[\d,.]* m?s\b *")


def drawn(screen: Screen[Any]) -> list[Strip]:
    return screen._compositor.render_strips()


def picture(screen: Screen[object], folder: Path) -> str:
    rows = _rows(screen, folder)
    console = Console(
        width=max(sum(segment.cell_length for segment in row) for row in rows), height=len(rows), file=io.StringIO(),
        force_terminal=True, color_system="truecolor", record=True, legacy_windows=False,
    )  # fmt: skip
    for row in rows:
        console.print(Segments([*row, Segment.line()]), end="")
    drawn = console.export_svg(title="", code_format=_FORMAT, unique_id="screen")
    return "\n".join(line.rstrip() for line in re.sub(r"(?<=>)(?=<)", "\n", drawn).splitlines()) + "\n"


def grid(screen: Screen[object], folder: Path) -> str:
    """What is seen as text: the characters, then a letter for the style of each, then what the letters mean."""
    rows, letters = _rows(screen, folder), dict[str, str]()
    for style in (str(segment.style) for row in rows for segment in row):
        letters.setdefault(style, (string.ascii_letters + string.digits)[len(letters)])
    text = ["".join(segment.text for segment in row).rstrip() for row in rows]
    styles = ["".join(letters[str(segment.style)] * len(segment.text) for segment in row) for row in rows]
    return "\n".join([*text, "", *styles, "", *(f"{letter} {style}" for style, letter in letters.items())]) + "\n"


def _rows(screen: Screen[object], folder: Path) -> list[list[Segment]]:
    """The lines, of a sheet over the chat the sheet alone, but for a folder's name and measured times."""
    for field in (*screen.query(TextArea), *screen.query(Input)):
        field.cursor_blink = False
    strips = drawn(screen)
    if screen.is_modal:
        sheet = Region.from_union([child.region for child in screen.children if child.region.area])
        strips = [strip.crop(sheet.x, sheet.right) for strip in strips[sheet.y : sheet.bottom]]
    return [[*_masked(strip, str(folder))] for strip in strips]


def _masked(strip: Strip, folder: str) -> Iterator[Segment]:
    """A line with its masks, which are as long as what they hide and the spaces after it."""
    text = strip.text.replace(folder, "/tmp/screen-".ljust(len(folder), "-"))
    styles = [segment.style for segment in strip for _ in segment.text]
    for found in _TIMES.finditer(text):
        start, end = found.span()
        styles[start : start + len(_MASK)] = [styles[start]] * len(_MASK)
        styles[start + len(_MASK) : end] = [styles[end - 1]] * (end - start - len(_MASK))
    text = _TIMES.sub(lambda found: _MASK.ljust(len(found[0])), text)
    for style, run in groupby(zip(text, styles, strict=True), key=itemgetter(1)):
        yield Segment("".join(letter for letter, _ in run), style)
