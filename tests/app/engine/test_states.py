"""Kept KV states: whole or not at all, for their owner alone, and no more than a limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slipstream.app.engine import states
from slipstream.app.engine.states import read_state, write_state


def test_a_state_is_its_owners_and_good_for_its_key_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.state"
    write_state(path, "key", [1, -2], b"cache")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_state(path, "key") == ([1, -2], b"cache")
    assert read_state(path, "other") is None
    assert read_state(tmp_path / "none.state", "key") is None
    path.write_bytes(path.read_bytes()[:-1])
    assert read_state(path, "key") is None


def test_those_that_were_not_used_for_longest_leave_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate("abc"):
        write_state(tmp_path / f"{name}.state", "key", [], bytes(1000))
        os.utime(tmp_path / f"{name}.state", (number, number))
    (tmp_path / "other.txt").write_bytes(bytes(5000))
    size = (tmp_path / "a.state").stat().st_size
    monkeypatch.setattr(states, "LIMIT", 3 * size)
    assert read_state(tmp_path / "a.state", "key")  # used: now b is the oldest
    write_state(tmp_path / "d.state", "key", [], bytes(1000))
    assert {path.name for path in tmp_path.iterdir()} == {"a.state", "c.state", "d.state", "other.txt"}
    write_state(tmp_path / "e.state", "key", [], bytes(9000))  # larger than all may be: it alone stays
    assert {path.name for path in tmp_path.glob("*.state")} == {"e.state"}
