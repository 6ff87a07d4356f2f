"""What the autopilot learns is kept from one run to the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.app.engine import flight_log
from slipstream.app.engine.arm import Record
from slipstream.app.engine.autopilot import Autopilot
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.flight_log import FlightLog
from slipstream.app.engine.measuring import SAME_DISTRIBUTION, SAME_TEXT
from slipstream.drafters.memory import Memory
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.token_recycling import TokenRecycling
from slipstream.models.runtime.fake import FakeTarget


def quiet(_share: float) -> None:
    """Nobody asks how far it is."""


def pilot_of(log: FlightLog, target: FakeTarget, plain_ms: float) -> Autopilot:
    drafters = {"lookup": PromptLookup(), "recycle": TokenRecycling(target.abilities)}
    return log.autopilot(drafters, target, plain_ms, quiet)


def test_costs_and_records_come_back(tmp_path: Path) -> None:
    target, memory = FakeTarget(), Memory(tmp_path, "0123456789abcdef")
    log = FlightLog(memory, "this machine")
    first = pilot_of(log, target, 0.5)
    single = first.meter.costs.rows[1]
    lookup = next(arm for arm in first.arms if arm.name == "lookup")
    assert lookup.record.asked and not lookup.record.judged  # timed, before anything is known
    known = Record(asked=40, judged=30, tokens=2.5, rows=4.0, draft_ms=0.1, hear_ms=0.02, gain_ms=3.0)
    lookup.record = known
    log.keep(first)
    again = pilot_of(FlightLog(memory, "this machine"), target, single)
    assert next(arm for arm in again.arms if arm.name == "lookup").record == known
    assert next(arm for arm in again.arms if arm.name == "recycle").record.judged == 0
    assert again.meter.costs.rows[2] == pytest.approx(first.meter.costs.rows[2])
    elsewhere = pilot_of(FlightLog(memory, "another machine"), target, single)
    assert next(arm for arm in elsewhere.arms if arm.name == "lookup").record != known


def test_a_promise_that_was_proved_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, memory = FakeTarget(), Memory(tmp_path, "0123456789abcdef")
    answers = [SAME_DISTRIBUTION, SAME_TEXT, SAME_DISTRIBUTION, SAME_DISTRIBUTION]
    monkeypatch.setattr(flight_log, "measure_promise", lambda target, ms: answers.pop(0))
    log = FlightLog(memory, "this machine")
    assert log.promise(target, 1.0) == SAME_DISTRIBUTION  # a busy machine: measured again
    assert [log.promise(target, 1.0) for _ in range(3)] == [SAME_TEXT] * 3
    assert FlightLog(memory, "another machine").promise(target, 1.0) == SAME_DISTRIBUTION
    assert FlightLog(None, "this machine").promise(target, 1.0) == SAME_DISTRIBUTION
    assert not answers


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"key": "k", "arms": {"lookup": {}}}', b'{"key": "k", "arms": 3}']
)
def test_damaged_records_are_learnt_anew(tmp_path: Path, damage: bytes) -> None:
    target, memory = FakeTarget(), Memory(tmp_path, "0123456789abcdef")
    memory.write("auto", damage)
    memory.write("costs", damage)
    pilot = pilot_of(FlightLog(memory, "k"), target, 0.5)
    assert all(not arm.record.judged for arm in pilot.arms)


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    target, log = FakeTarget(), FlightLog(None, "k")
    pilot = pilot_of(log, target, 0.5)
    pilot.arms[0].record = replace(pilot.arms[0].record, judged=5)
    log.keep(pilot)
    assert isinstance(pilot.meter.costs, Costs) and not [*tmp_path.iterdir()]
