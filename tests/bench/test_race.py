"""The part that compares a race with the benchmark: equal texts, and when the two agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.race import RaceFigures
from tests.bench.test_command import TINY, options

from slipstream.app.bench.intervals import ReplyPair, TimedTokens
from slipstream.app.platform.paths import HOME_VARIABLE


def runs(*speedups: float) -> list[ReplyPair]:
    return [ReplyPair(TimedTokens(40, 1 / speedup), TimedTokens(40, 1.0)) for speedup in speedups]


@pytest.mark.parametrize(
    ("raced", "benched", "agree"),
    [
        ((1.5, 1.5), (1.45, 1.45), True),  # within 5 %
        ((1.5, 1.5, 1.5), (1.2, 1.2, 1.2), False),
        ((1.9, 1.1, 1.6, 1.3, 1.5), (1.1, 1.8, 1.2, 1.4, 1.3), True),  # too far apart, but so are the runs
    ],
)
def test_they_agree_within_5_percent_or_within_the_interval(
    raced: tuple[float, ...], benched: tuple[float, ...], agree: bool
) -> None:
    assert RaceFigures("mini", "auto", runs(*raced), runs(*benched), 0, "same text").holds is agree


@pytest.mark.program
def test_both_write_the_same_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert bench(options(tmp_path / "f.json", "race", drafters="lookup,none", tokens=40, seeds=2), TINY) == 0
    (figures,) = json.loads((tmp_path / "f.json").read_text())["race"]
    assert (figures["drafter"], figures["differing"], figures["promise"]) == ("lookup", 0, "same text")
    for raced, benched in zip(figures["raced"], figures["benched"], strict=True):
        assert raced["ours"]["tokens"] == benched["ours"]["tokens"] == benched["plain"]["tokens"]
    assert "race over bench" in capsys.readouterr().out
