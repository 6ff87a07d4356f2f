"""The head of the report, and its tables."""

from slipstream.app.bench.report import table
from slipstream.app.bench.runner import BenchMachine


def test_the_head_says_when_the_machine_is_busy() -> None:
    idle = BenchMachine("CPU X", "CPU, 2 threads", 2, "Linux x86_64", "3.11.7", "0.3.36", "0.1.0", 0.1)
    busy = BenchMachine("CPU X", "CPU, 2 threads", 2, "Linux x86_64", "3.11.7", "0.3.36", "0.1.0", 3.25)
    assert "CPU X; 2 cores" in idle.lines()[0]
    assert not any("busy" in line for line in idle.lines())
    assert any("busy (load 3.2" in line for line in busy.lines())


def test_columns_line_up() -> None:
    lines = table("title", ("name", "figure"), [("a", "1"), ("long name", "100")], ["note"]).splitlines()
    assert lines == [
        "",
        "title",
        "",
        "| name      | figure |",
        "|-----------|-------:|",
        "| a         |      1 |",
        "| long name |    100 |",
        "",
        "note",
    ]


def test_a_bar_in_a_name_does_not_end_a_cell() -> None:
    assert r"| a\|b | 1 |" in table("title", ("x", "y"), [("a|b", "1")])
