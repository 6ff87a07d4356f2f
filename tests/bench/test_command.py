"""``python -m tests.bench`` from its options to its tables and its JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.__main__ import options as parsed
from tests.bench.parts import NAMES, Sizes
from tests.bench.shapes import NODES_1, NODES_16
from tests.bench.weights import ModelShape

from slipstream.app.bench.turns import BenchAmounts
from slipstream.models.errors import UsageError

pytestmark = pytest.mark.program

TINY = Sizes(
    BenchAmounts(temperatures=(0.8,), reply=12, drafter_steps=0),
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
    topic_rounds=1,
    memory_steps=3,
    startup_rounds=1,
    waiting_passes=2,
    waiting_rounds=1,
)


def options(json_file: Path | None, *names: str, **given: object) -> Namespace:
    """The options as the command line gives them: ``drafters="lookup"``, ``prompts=[file]``."""
    arguments = [*names, *(["--json", str(json_file)] if json_file else [])]
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            arguments.append(f"--{name.replace('_', '-')}={each}")
    return parsed(arguments)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.mark.slow
def test_parts_are_printed_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(options(tmp_path / "figures.json", "startup", "plain", "overhead", "memory", "waiting"), TINY) == 0
    printed = capsys.readouterr()
    head = printed.out.splitlines()
    assert "cores" in head[0] and "llama-cpp-python" in head[1]
    for part in ("startup:", "plain:", "overhead:", "memory:", "waiting:"):
        assert any(line.startswith(part) for line in head), part
    assert "bench: plain, tiny: round 1 of 2" in printed.err

    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == {"machine", "startup", "plain", "overhead", "memory", "waiting"}
    starts = {name: spread["median"] for name, spread in figures["startup"].items() if name.endswith("_ms")}
    assert 0 < starts["textual_ms"] < starts["first_paint_ms"]
    assert 0 < starts["help_ms"] < min(starts["first_token_ms"], starts["new_home_ms"])
    tiny, bundled = figures["plain"]
    assert (tiny["model"], bundled["model"]) == ("tiny", "bundled")
    assert 0 < bundled["greedy_ratio"]["low"] <= bundled["greedy_ratio"]["median"] <= bundled["greedy_ratio"]["high"]
    assert [(row["nodes"], row["leaves"]) for row in figures["overhead"]] == [(1, 1), (16, 8)]
    for row in figures["overhead"]:
        assert row["same_text"]
        assert row["outside_ms"]["low"] > row["loop_ms"]["low"] > 0
        assert row["sampling_ms"]["low"] > 0
    assert figures["overhead"][1]["tokens_per_step"] == pytest.approx(1 + (0 + 1 + 4 + 3 + 3 + 3) / 6)
    assert all(spread["low"] > 0 for kinds in figures["waiting"]["means"].values() for spread in kinds.values())
    for row in figures["memory"]:
        assert row["peak_mb"] > row["before_mb"] > 10
        assert row["over_file_mb"] == pytest.approx(row["peak_mb"] - row["file_mb"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["speed"], "invalid choice: 'speed'"),
        ([], "required: NAME"),
        (["plain", "--inflate", "1b"], "part plain measures no widened model"),
        (["topics", "--svg", "x.svg"], "--svg draws what slipstream bench measures"),
        (["peers", "--peer", "vllm"], "no engine 'vllm'"),
        (["topics", "--drafters", "magic"], "no drafter 'magic'"),
    ],
)
def test_a_wrong_use_is_refused_before_anything_is_measured(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=words):
        bench(parsed(arguments), TINY)
    assert not capsys.readouterr().out


def test_the_help_names_every_part() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.bench", "--help"], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0 and all(name in done.stdout for name in NAMES)


def test_no_part_of_the_program_needs_the_tests() -> None:
    root = Path(__file__).parents[2]
    files = [file for room in ("app", "drafters", "models") for file in (root / room).rglob("*.py")]
    assert not [
        file for file in files if re.search(r"^\s*(?:from|import) tests\b", file.read_text("utf-8"), re.MULTILINE)
    ]
