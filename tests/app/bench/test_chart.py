"""The bars, in a terminal and as an SVG, and the tables and the head of the report."""

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from slipstream.app.bench.figures import DrafterFigures, Noise
from slipstream.app.bench.intervals import Interval
from slipstream.app.bench.plots import ChartSection, Style, chart, chart_svg, verdict
from slipstream.app.bench.report import table
from slipstream.app.bench.runner import BenchMachine

ASCII = Style(80, "#[-]o|+")


def row(drafter: str, ratio: Interval, kind: str = "copy", temperature: float = 0.0) -> DrafterFigures:
    return DrafterFigures(
        drafter, kind, temperature, 40.0, ratio, [1.0], 2.0, 0.5, [0.5], {"draft": 1.0}, 9.0, 10, 1, 1
    )


ROWS = [
    row("none", Interval(1.0)),
    row("lookup", Interval(2.0, 1.5, 2.5)),
    row("draft", Interval(0.5, 0.4, 0.6)),
    row("auto", Interval(1.1, 0.9, 1.3), "chat", 0.8),
    row("medusa", Interval(0.8), "chat", 0.8),
]


def bars(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        match = re.match(r"  (\w+) +[\d.]+x(?: \[[^]]*\])?  +(\S.*)$", line)
        if match:
            found[match[1]] = match[2]
    return found


def test_a_bar_for_each_drafter_and_a_fence_in_a_file() -> None:
    lines = chart(ROWS, ASCII).splitlines()
    assert [line for line in lines if line.endswith((", T 0", ", T 0.8"))] == ["copy, T 0", "chat, T 0.8"]
    assert list(bars(chart(ROWS, ASCII))) == ["lookup", "draft", "auto", "medusa"]  # plain is the line at 1x
    assert not chart(ROWS[:1], ASCII) and "```" not in chart(ROWS, ASCII)
    lines = chart(ROWS, replace(ASCII, fenced=True)).splitlines()
    assert lines.index("```text") < lines.index("copy, T 0") and lines[-1] == "```"


def test_bars_end_at_the_value_with_the_interval_around_it() -> None:
    drawn = bars(chart(ROWS, ASCII))
    assert re.fullmatch(r"#+\[-+o-+\]", drawn["lookup"])
    assert re.fullmatch(r"#+\[-*o-*\] +\|", drawn["draft"])  # and plain decoding's line beyond it
    assert re.fullmatch(r"#+\[-*\+-*o-*\]", drawn["auto"])  # the line crosses the interval
    assert re.fullmatch(r"#+o +\|", drawn["medusa"])  # no interval
    assert drawn["lookup"].index("o") == pytest.approx(4 * drawn["draft"].index("o"), abs=2)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_chart_keeps_to_the_width_of_the_terminal(width: int) -> None:
    text = chart(ROWS, replace(ASCII, width=width))
    longest = max(map(len, text.splitlines()))
    assert longest <= max(width, 56)  # a terminal too narrow for the figures gets short bars
    assert width < 60 or longest > width - 12


def test_colors_say_what_is_certain_and_only_in_a_terminal() -> None:
    colored = {
        line.split()[1]: line[:5] for line in chart(ROWS, replace(ASCII, color=True)).splitlines() if "\x1b" in line
    }
    assert colored == {"lookup": "\x1b[32m", "draft": "\x1b[31m"}
    assert "\x1b" not in chart(ROWS, ASCII)
    text = chart(ROWS, replace(ASCII, color=True), Noise(spread=3.0))
    assert "\x1b[3" not in text
    assert verdict(ROWS[1], Noise(spread=1.4)) == "gain" and verdict(ROWS[2], Noise(spread=1.4)) == "loss"


def test_what_drafted_nothing_is_grey_and_has_no_bar() -> None:
    idle = replace(row("mtp", Interval(17.0, 1.1, 24.0)), acceptance=None)
    text = chart([*ROWS, idle], replace(ASCII, color=True))
    (line,) = (line for line in text.splitlines() if "mtp" in line)
    assert line.startswith("\x1b[90m") and "guessed nothing" in line and "17" not in line
    assert bars(chart([*ROWS, idle], ASCII)) == bars(chart(ROWS, ASCII))  # it sets no scale
    assert len(ElementTree.fromstring(chart_svg([ChartSection("mini", [*ROWS, idle])])).findall(f"{SVG}rect")) == 4


class Stream(io.StringIO):
    def __init__(self, terminal: bool, encoding: str) -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    def isatty(self) -> bool:
        return self._terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def test_the_style_is_what_the_output_can_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.of(Stream(True, "utf-8")) == Style(70, color=True)
    assert Style.of(Stream(True, "ascii")) == replace(ASCII, width=70, color=True)
    assert Style.of(Stream(False, "utf-8")) == Style(100, fenced=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Style.of(Stream(True, "utf-8")).color
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Style.of(Stream(True, "utf-8")).color


SVG = "{http://www.w3.org/2000/svg}"


def test_the_svg_holds_every_bar_and_whisker_of_all_models_on_one_scale() -> None:
    image = ElementTree.fromstring(chart_svg([ChartSection("mini & <co>", ROWS)]))
    rects = image.findall(f"{SVG}rect")
    assert [rect.get("class") for rect in rects] == ["gain", "loss", "even", "even"]
    widths = [float(rect.get("width", "")) for rect in rects]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.3)
    assert len(image.findall(f"{SVG}path")) == 3  # medusa has no interval
    words = [text.text for text in image.findall(f"{SVG}text")]
    for word in ("lookup", "2.00x [1.50, 2.50]", "0.80x", "copy, temperature 0", "chat, temperature 0.8", "plain"):
        assert word in words
    assert "mini & <co>; lines are 95 % intervals" in words
    size = [float(each) for each in image.get("viewBox", "").split()]
    for text in image.findall(f"{SVG}text"):
        assert 0 <= float(text.get("x", "")) <= size[2] and 0 < float(text.get("y", "")) <= size[3]
    alone = ElementTree.fromstring(chart_svg([ChartSection("small", ROWS[:2])]))
    both = ElementTree.fromstring(
        chart_svg([ChartSection("small", ROWS[:2]), ChartSection("large", [row("auto", Interval(5.0))])])
    )
    (first,), (small, large) = alone.findall(f"{SVG}rect"), both.findall(f"{SVG}rect")
    assert float(small.get("width", "")) < float(first.get("width", ""))
    assert float(large.get("width", "")) == pytest.approx(2.5 * float(small.get("width", "")), abs=0.3)
    assert float(large.get("y", "")) > float(small.get("y", ""))


def test_the_head_says_when_the_machine_is_busy() -> None:
    idle = BenchMachine("CPU X", "CPU, 2 threads", 2, "Linux x86_64", "3.11.7", "0.3.36", "0.1.0", 0.1)
    busy = BenchMachine("CPU X", "CPU, 2 threads", 2, "Linux x86_64", "3.11.7", "0.3.36", "0.1.0", 3.25)
    assert "CPU X; 2 cores" in idle.lines()[0]
    assert not any("busy" in line for line in idle.lines())
    assert any("busy (load 3.2" in line for line in busy.lines())


def test_columns_line_up_whatever_a_name_holds() -> None:
    lines = table("title", ("name", "figure"), [("a", "1"), ("long name", "100")], ["note"]).splitlines()
    assert lines == [
        *("", "title", ""),
        "| name      | figure |",
        "|-----------|-------:|",
        "| a         |      1 |",
        "| long name |    100 |",
        *("", "note"),
    ]
    assert r"| a\|b | 1 |" in table("title", ("x", "y"), [("a|b", "1")])
