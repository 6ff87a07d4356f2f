"""What the commands and the models screen know of machines that lend."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bench.__main__ import bench
from tests.bench.test_command import TINY, options
from tests.devices.lender import Lender, Wire

from slipstream.app.library.manager import ModelManager
from slipstream.app.platform.paths import HOME_VARIABLE, Paths


def test_the_models_screen_counts_what_is_lent(lender: Lender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    manager = ModelManager(Paths.default())
    assert not any(device.machine for device in manager.devices())
    manager.borrow(lender.endpoint)
    [there] = manager.lenders()
    assert there.endpoint == lender.endpoint and not there.problem
    assert [device.machine for device in manager.devices() if device.machine] == [lender.endpoint]
    manager.borrow("")
    assert manager.lenders() == []


def test_a_model_on_another_machine_is_measured(
    lender: Lender, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    wire = Wire(lender.port)
    asked = options(tmp_path / "f.json", "race", drafters="lookup", tokens=40, rpc=wire.endpoint)
    assert bench(asked, TINY) == 0
    [figures] = json.loads((tmp_path / "f.json").read_text())["race"]
    assert figures["differing"] == 0 and figures["raced"][0]["ours"]["tokens"] > 5
    assert wire.passed[0] > 10 << 20  # its weights
    wire.close()


def test_drafters_are_measured_over_networks(
    rpc: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    asked = options(tmp_path / "f.json", "network", drafters="lookup,draft", tokens=40, limit=1)
    assert bench(asked, replace(TINY, network_ms=(5.0,))) == 0
    figures = json.loads((tmp_path / "f.json").read_text())["network"]
    assert 0 < figures["own_ms"] < 5
    assert [(delay, there) for delay, there, _ in figures["reports"]] == [(5.0, 8), (5.0, 15)]
    for _, _, report in figures["reports"]:
        assert report["texts"] == report["equal_texts"] > 0
        plain = next(row for row in report["rows"] if row["drafter"] == "none")
        assert plain["tok_per_s"] < 100  # a step waits for a round trip of 10 ms
    assert "5 ms" in capsys.readouterr().out
