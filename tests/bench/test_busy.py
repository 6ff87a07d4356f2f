"""The part that measures whole replies beside other programs: its figures, and what runs beside it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest
from tests.bench.__main__ import bench
from tests.bench.busy import COMPANY, LEAST, BusyFigures, beside, busy_text
from tests.bench.test_command import TINY, options

from slipstream.app.bench.intervals import ReplyPair, TimedTokens
from slipstream.app.platform.paths import HOME_VARIABLE


def pair(speedup: float) -> ReplyPair:
    return ReplyPair(TimedTokens(100, 1 / speedup), TimedTokens(100, 1.0))


def test_the_worst_set_and_the_median_are_named() -> None:
    figures = BusyFigures(
        "bursts", "auto", {"story": [pair(1.5), pair(1.2)], "copy": [pair(0.9), pair(1.1)]}, 3, (9, 9, 9)
    )
    assert figures.middle == pytest.approx(1.15)
    assert figures.worst[0] == "copy"
    shown = busy_text([figures, BusyFigures("nothing", "auto", {}, 2, (0, 0, 0))])
    assert "4 (3 too short)" in shown and "1.15x" in shown and "copy 0.99x" in shown
    assert "0 (2 too short)" in shown


@pytest.mark.parametrize(("company", "programs"), list(zip(COMPANY, (0, 1, 2), strict=True)))
def test_so_many_programs_run_beside_it_and_none_afterwards(company: str, programs: int) -> None:
    before = set(psutil.Process().children())
    with beside(company):
        found = set(psutil.Process().children()) - before
        assert len(found) == programs
        end = time.monotonic() + 20
        while not all(sum(process.cpu_times()[:2]) > 0.1 for process in found):
            assert time.monotonic() < end
            time.sleep(0.05)
    assert set(psutil.Process().children()) <= before
    assert not [process for process in found if psutil.pid_exists(process.pid)]


@pytest.mark.program
def test_replies_are_timed_in_each_company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    asked = options(tmp_path / "f.json", "busy", drafters="lookup,none", tokens=LEAST + 4)
    assert bench(asked, TINY) == 0
    found = json.loads((tmp_path / "f.json").read_text())["busy"]
    assert [(each["company"], each["drafter"]) for each in found] == [(company, "lookup") for company in COMPANY]
    for each in found:
        assert len(set(each["read"])) == 1 and each["read"][0] > 0  # no reply uses the prompt that another has read
        pairs = [pair for pairs in each["sets"].values() for pair in pairs]
        assert len(pairs) + each["short"] == sum(map(len, found[0]["sets"].values())) + found[0]["short"] > 0
        assert all(LEAST <= pair["ours"]["tokens"] == pair["plain"]["tokens"] for pair in pairs)
