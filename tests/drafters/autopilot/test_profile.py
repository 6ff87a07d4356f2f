"""What the autopilot learns is kept from one run to the next."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.fake_target import FakeTarget

from slipstream.drafters.autopilot.arm import ArmRecord
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.recycle import TokenRecycling


def quiet(_share: float) -> None:
    """Nobody asks how far it is."""


def pilot_of(log: Profile, target: FakeTarget, plain_ms: float) -> Autopilot:
    drafters = {"lookup": PromptLookup(), "recycle": TokenRecycling(target.abilities)}
    return log.autopilot(drafters, target, plain_ms, quiet)


def test_costs_and_records_come_back(tmp_path: Path) -> None:
    target, memory = FakeTarget(), DrafterMemory(tmp_path, "0123456789abcdef")
    log = Profile(memory, "this machine")
    first = pilot_of(log, target, 0.5)
    single = first.throughput.costs.rows[1]
    lookup = next(arm for arm in first.arms if arm.name == "lookup")
    assert lookup.record.asked and not lookup.record.judged  # timed, before anything is known
    known = ArmRecord(asked=40, judged=30, tokens=2.5, rows=4.0, draft_ms=0.1, observe_ms=0.02, gain_ms=3.0)
    lookup.record = known
    log.keep(first)
    again = pilot_of(Profile(memory, "this machine"), target, single)
    assert next(arm for arm in again.arms if arm.name == "lookup").record == known
    assert next(arm for arm in again.arms if arm.name == "recycle").record.judged == 0
    assert again.throughput.costs.rows[2] == pytest.approx(first.throughput.costs.rows[2])
    elsewhere = pilot_of(Profile(memory, "another machine"), target, single)
    assert next(arm for arm in elsewhere.arms if arm.name == "lookup").record != known


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"key": "k", "arms": {"lookup": {}}}', b'{"key": "k", "arms": 3}']
)
def test_damaged_records_are_learnt_anew(tmp_path: Path, damage: bytes) -> None:
    target, memory = FakeTarget(), DrafterMemory(tmp_path, "0123456789abcdef")
    memory.write("auto", damage)
    memory.write("costs", damage)
    pilot = pilot_of(Profile(memory, "k"), target, 0.5)
    assert all(not arm.record.judged for arm in pilot.arms)


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    target, log = FakeTarget(), Profile(None, "k")
    pilot = pilot_of(log, target, 0.5)
    pilot.arms[0].record = replace(pilot.arms[0].record, judged=5)
    log.keep(pilot)
    assert isinstance(pilot.throughput.costs, CostModel) and not [*tmp_path.iterdir()]
