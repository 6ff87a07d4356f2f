"""Part ``typing``: both kinds of replies are the same, and one had read its prompt before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.clocks import Spread
from tests.bench.test_command import TINY, options
from tests.bench.typing_ahead import TypingFigures, typing_text


@pytest.mark.slow
def test_the_replies_are_the_same_and_the_tables_say_how_much_sooner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    settings = replace(TINY, typing_rounds=1, typing_s=1.0)
    assert bench(options(tmp_path / "f.json", "typing"), settings) == 0
    figures = json.loads((tmp_path / "f.json").read_text())["typing"]
    assert figures["same"] and figures["rounds"] == 1
    assert 1000 < figures["without_tokens"] <= figures["prompt_tokens"]
    assert 0 < figures["ahead_tokens"] <= figures["without_tokens"]
    assert figures["ratio"] == figures["without_ms"]["median"] / figures["ahead_ms"]["median"]
    assert f"{figures['ratio']:.1f}x sooner; the replies are the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("promise", "same", "passed"),
    [("same text", True, True), ("same text", False, False), ("same distribution", False, True)],
)
def test_another_text_fails_where_the_same_is_promised(promise: str, same: bool, passed: bool) -> None:
    waits = Spread(90.0, 80.0, 100.0), Spread(30.0, 20.0, 40.0)
    figures = TypingFigures("mini", promise, 1500, 10.0, 3, *waits, 1490, 17, 3.0, same)
    assert figures.passed is passed
    assert ("NOT the same" in typing_text(figures)) is not same
    assert "3.0x sooner" in typing_text(figures) and "30 (20..40)" in typing_text(figures)
