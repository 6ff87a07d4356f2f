"""The command ``bench`` from its options to its tables and its JSON."""

import argparse
import json
from pathlib import Path

import pytest

from slipstream.app.bench.clocks import Spread
from slipstream.app.bench.command import bench
from slipstream.app.bench.drafters import DrafterFigures, DrafterReport
from slipstream.app.bench.machine import Machine
from slipstream.app.bench.report import drafters_text, table
from slipstream.app.bench.settings import Settings
from slipstream.app.bench.shapes import NODES_1, NODES_16
from slipstream.app.bench.weights import ModelShape
from slipstream.drafters.registry import METHODS
from slipstream.models.errors import SlipstreamError, UsageError

TINY = Settings(
    large=ModelShape("tiny", n_vocab=1000, n_embd=64, n_layer=1, n_ff=64, n_head=2, n_head_kv=1),
    wide=ModelShape("tiny and wide", n_vocab=2000, n_embd=64, n_layer=1, n_ff=64, n_head=2, n_head_kv=1),
    threads=1,
    large_ctx=256,
    wide_ctx=256,
    plain_rounds=2,
    large_steps=4,
    bundled_steps=4,
    start=8,
    used=(20,),
    trees=(NODES_1, NODES_16),
    overhead_rounds=2,
    overhead_steps=6,
    temperatures=(0.8,),
    seeds=(1,),
    reply=12,
    memory_steps=3,
)


def options(json_file: Path | None = None, *only: str) -> argparse.Namespace:
    return argparse.Namespace(json=str(json_file) if json_file else None, only=list(only))


def test_all_parts_are_printed_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(options(tmp_path / "figures.json"), TINY) == 0
    printed = capsys.readouterr()
    head = printed.out.splitlines()
    assert "cores" in head[0]
    assert "llama-cpp-python" in head[1]
    for part in ("plain:", "overhead:", "drafters:", "memory:"):
        assert any(line.startswith(part) for line in head), part
    replies = 3 * (len(METHODS) - 1)  # of each drafter but plain decoding
    assert f"texts equal: {replies}/{replies}" in printed.out
    assert "bench: plain, tiny: round 1 of 2" in printed.err

    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"machine", "plain", "overhead", "drafters", "memory"}
    tiny, bundled = figures["plain"]
    assert (tiny["model"], bundled["model"]) == ("tiny", "bundled")
    assert 0 < bundled["greedy_ratio"]["low"] <= bundled["greedy_ratio"]["median"] <= bundled["greedy_ratio"]["high"]
    assert [(row["nodes"], row["leaves"]) for row in figures["overhead"]] == [(1, 1), (16, 8)]
    for row in figures["overhead"]:
        assert row["same_text"]
        assert row["outside_ms"]["low"] > row["loop_ms"]["low"] > 0
        assert row["sampling_ms"]["low"] > 0
    assert figures["overhead"][1]["tokens_per_step"] == pytest.approx(1 + (0 + 1 + 4 + 3 + 3 + 3) / 6)
    assert {row["drafter"] for row in figures["drafters"]["rows"]} == set(METHODS) - {"none"}
    assert {row["kind"] for row in figures["drafters"]["rows"]} == {"chat", "story", "copy"}
    for row in figures["memory"]:
        assert row["peak_mb"] > row["before_mb"] > 10
        assert row["over_file_mb"] == pytest.approx(row["peak_mb"] - row["file_mb"])


def test_only_the_parts_asked_for_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(options(None, "overhead"), TINY) == 0
    printed = capsys.readouterr().out
    assert "overhead:" in printed
    assert not any(f"\n{part}:" in printed for part in ("plain", "drafters", "memory"))


def test_an_unknown_part_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="plain, overhead, drafters, memory"):
        bench(options(None, "speed"), TINY)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for bad in (tmp_path, tmp_path / "missing" / "figures.json"):
        with pytest.raises(SlipstreamError, match="cannot write"):
            bench(options(bad), TINY)
    assert not capsys.readouterr().out


def test_figures_that_are_there_survive_until_new_ones_are(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text("{}")
    with pytest.raises(UsageError):
        bench(options(file, "speed"), TINY)
    assert file.read_text() == "{}"


def test_the_head_says_when_the_machine_is_busy() -> None:
    idle = Machine("CPU X", "CPU, 2 threads", 2, "Linux x86_64", "3.11.7", "0.3.36", "0.1.0", 0.1)
    busy = Machine("CPU X", "CPU, 2 threads", 2, "Linux x86_64", "3.11.7", "0.3.36", "0.1.0", 3.25)
    assert "CPU X; 2 cores" in idle.lines()[0]
    assert not any("busy" in line for line in idle.lines())
    assert any("busy (load 3.2" in line for line in busy.lines())


def test_columns_line_up() -> None:
    lines = table("title", ("name", "figure"), [("a", "1"), ("long name", "100")], ["note"]).splitlines()
    assert lines == ["", "title", "  name       figure", "  a               1", "  long name     100", "  note"]


def test_a_drafter_that_drafted_nothing_has_no_acceptance() -> None:
    row = DrafterFigures("lookup", "chat", 0.8, Spread(1, 1, 1), 1.0, None, [], 10, 1, 1)
    text = drafters_text(
        DrafterReport("mini", "same text", Spread(9, 8, 10), [row], {"draft": "it needs a draft model"}, 1, 1)
    )
    assert " - " in text
    assert "texts equal: 1/1" in text
    assert "draft was left out: it needs a draft model." in text
