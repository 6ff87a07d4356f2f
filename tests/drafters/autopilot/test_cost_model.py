"""What passes cost: measured, interpolated, followed, kept; and which of them count as disturbed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.drafters.autopilot.virtual_time import CHEAP, DEAR, Clock, TimedTarget

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.cost_model import MEASURABLE, CostModel, Disturbance, PassWidth, measure_costs
from slipstream.drafters.autopilot.throughput import ThroughputMeter
from slipstream.drafters.base import NO_DRAFT, Step, Timings
from slipstream.models.types import EMPTY_TREE, Evaluation, Token, TokenTree


def test_widths_are_interpolated_and_text_in_the_cache_makes_passes_longer() -> None:
    rows = CostModel({1: 10.0, 2: 16.0, 4: 20.0}, {}, 0, 8).rows
    assert rows[1:] == pytest.approx([10, 16, 18, 20, 22, 24, 26, 28])
    costs = CostModel({1: 10.0, 2: 16.0, 4: 20.0}, {1: 30.0, 4: 80.0}, 1016, 4)
    assert costs.rows[1] == pytest.approx(10)
    costs.set_length(516)
    assert costs.rows[1] == pytest.approx(20) and costs.rows[4] == pytest.approx(50)
    costs = CostModel({1: 10.0, 2: 17.0, 4: 22.0, 8: 40.0}, {}, 0, 8)
    assert costs.row_ms(2) == pytest.approx(7)
    assert costs.row_ms(8) == pytest.approx(4)  # (22 - 10) / 3
    assert costs.row_ms(1) == 10


def test_a_width_is_refined_by_its_first_steps_but_not_by_a_disturbed_one() -> None:
    costs = CostModel({1: 10.0, 8: 24.0}, {}, 0, 8)
    costs.observe(2, 12.0)  # as measured
    before = [*costs.rows]
    for _ in range(8):
        costs.observe(4, 20.0)
    assert costs.rows[4] == pytest.approx(20, rel=0.02) and costs.drift == 1 and costs.rows[1:3] == before[1:3]
    assert costs.rows[3] == pytest.approx(before[3] * 1.125) and costs.rows[8] == pytest.approx(before[8] * 1.25)
    costs = CostModel({1: 10.0, 8: 24.0}, {}, 0, 8)
    for milliseconds in (16.0, 90.0, 16.0, 95.0):
        costs.observe(4, milliseconds)
    assert costs.rows[4] == pytest.approx(16)


def test_the_costs_of_a_target_are_measured_in_their_time_and_the_first_widths_beyond_it() -> None:
    for budget, worst in ((4.0, 0.01), (0.0, 0.5)):  # with time for all widths; with that of 20 passes
        clock = Clock()
        target = TimedTarget(clock, DEAR)
        costs = measure_costs(target, 10.0, budget, clock)
        assert clock.now <= max(budget, 0.2) + 0.001
        assert not target.tokens
        for rows in (1, 2, 3, 4, 8):
            assert costs.rows[rows] == pytest.approx(CostModel(DEAR, {}, 0, 64).rows[rows], rel=worst)
    clock = Clock()
    costs = measure_costs(TimedTarget(clock, CHEAP, slower=lambda: 4.0), 10.0, 0.0, clock)
    assert costs.rows[2] / costs.rows[1] == pytest.approx(1.02)
    assert costs.rows[4] < 1.1 * costs.rows[1]


def test_passes_are_measured_with_the_text_that_is_given() -> None:
    """A model with experts reads more of them for different rows; what was in the pass before lies in a cache."""
    clock, seen = Clock(), list[list[Token]]()

    class Routed(TimedTarget):
        def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
            seen.append([last, *tree.tokens])
            return super().evaluate(last, tree)

    text = [5, 9, 2, 30, 7, 11, 3]
    measure_costs(Routed(clock, DEAR), 10.0, 4.0, clock, text)
    joined = [*text, *text, *text, *text, *text, *text, *text, *text, *text, *text]
    assert max(map(len, seen)) >= 32
    assert all(any(joined[at : at + len(run)] == run for at in range(len(text))) for run in seen)
    assert all(run != before for run, before in zip(seen[1:], seen, strict=False) if len(run) > 1)


def test_padded_passes_cost_what_their_width_takes() -> None:
    costs = CostModel({1: 10.0, 4: 22.0, 8: 37.0}, {}, 0, 8, (1, 4, 8))
    assert costs.rows[1:] == pytest.approx([10, 22, 22, 22, 37, 37, 37, 37])
    for _ in range(40):
        costs.observe(1, 10.0)
        costs.observe(3, 44.0)
    assert costs.rows[1] == pytest.approx(10)
    assert costs.rows[2] == costs.rows[3] == costs.rows[4] == pytest.approx(44, rel=0.02)


def test_padded_passes_are_measured_at_their_widths_each_after_one_of_the_same() -> None:
    clock, widths = Clock(), list[int]()

    class Far(TimedTarget):
        """Sends a graph again where the width changes."""

        def __init__(self) -> None:
            super().__init__(clock, DEAR)
            self.abilities = replace(self.abilities, widths=(1, 4, 16, 64))

        def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
            clock.now += 0.02 * (widths[-1:] != [1 + len(tree)])
            widths.append(1 + len(tree))
            return super().evaluate(last, tree)

    costs = measure_costs(Far(), 10.0, 8.0, clock)
    assert set(widths) == {1, 4, 16, 64}
    assert [costs.rows[rows] for rows in (1, 2, 4, 5, 16)] == pytest.approx([10, 22, 22, 52, 52])
    assert json.loads(costs.dump(""))["change_ms"] == pytest.approx(20)


def test_a_width_stays_until_another_one_would_have_saved_what_the_change_takes() -> None:
    width = PassWidth((1, 4, 8), change_ms=5.0)
    assert [width.choose({1: 0.0, 4: 2.0, 8: 1.0}) for _ in range(3)] == [1, 1, 4]
    assert width.choose({1: 4.0, 4: 2.0, 8: 9.0}) == 8  # at once, if one step pays for it
    assert [width.choose({1: 2.0, 4: 0.0, 8: 0.0}) for _ in range(2)] == [8, 8]
    assert [width.choose({1: 0.0, 4: 0.0, 8: 4.0}), width.choose({1: 3.0, 4: 0.0, 8: 0.0})] == [8, 8]
    assert [PassWidth((1, 4), 0.0).choose({1: 0.0, 4: gain}) for gain in (-1.0, 0.1)] == [1, 4]  # changes are free


def test_kept_costs_are_taken_only_where_they_hold() -> None:
    packed = CostModel(DEAR, {1: 14.0}, 1016, 64).dump("here")
    kept = CostModel.load(packed, "here", 11.0, 64)
    assert kept is not None and kept.drift == pytest.approx(1.1) and kept.rows[2] == pytest.approx(18.7)
    kept.set_length(1016)
    assert kept.rows[1] == pytest.approx(1.1 * 14)
    assert CostModel.load(packed, "elsewhere", 11.0, 64) is None
    assert CostModel.load(packed, "here", 30.0, 64) is None  # another machine, or a busy one


@pytest.mark.parametrize("damage", ["", "{}", "[1]", "null", '{"key": "here"}', "\x00"])
def test_damaged_costs_are_measured_anew(damage: str) -> None:
    assert CostModel.load(damage.encode(), "here", 10.0, 64) is None
    kept = json.loads(CostModel(DEAR, {}, 0, 64).dump("here"))
    assert CostModel.load(json.dumps(kept | {"change_ms": -1}).encode(), "here", 10.0, 64) is None
    for short in ({}, {"1": -3}, {"x": 1}, {"1": "ten"}, 5):
        assert CostModel.load(json.dumps(kept | {"short": short}).encode(), "here", 10.0, 64) is None


def plain_step(milliseconds: float, processor_ms: float) -> Step:
    return Step(
        NO_DRAFT, (), (1,), Evaluation(np.empty((1, 0), np.float32)),
        timings=Timings(evaluate=milliseconds, processor=processor_ms),
    )  # fmt: skip


@pytest.mark.skipif(not MEASURABLE, reason="processor time is too coarse")
def test_a_pass_that_waited_for_a_core_is_disturbed_until_the_machine_stays_busy() -> None:
    watch = Disturbance()
    assert not any(watch.add(took, 2 * took) for took in (10.0, 10.4, 9.8, 30.0))
    assert watch.add(25.0, 30.0) and not watch.add(10.0, 19.6)
    watch = Disturbance()
    watch.add(10.0, 20.0)
    disturbed = [watch.add(20.0, 24.0) for _ in range(60)]
    assert disturbed[:30] == [True] * 30 and not disturbed[-1]
    watch = Disturbance()
    assert not any(watch.add(10.0, share) for share in (2.0, 0.1, 1.0, 0.0))


@pytest.mark.skipif(not MEASURABLE, reason="processor time is too coarse")
def test_a_disturbed_step_is_left_out_of_the_costs() -> None:
    throughput = ThroughputMeter(CostModel({1: 10.0, 8: 24.0}, {}, 0, 8))
    for _ in range(settings.KNOWN + 4):
        throughput.record(plain_step(10.0, 20.0), 10.0, 0.0, None, 1.0, None)
    rate, cost = throughput.rate, throughput.costs.rows[1]
    throughput.record(plain_step(500.0, 600.0), 500.0, 0.0, None, 1.0, None)
    assert throughput.costs.rows[1] == cost and throughput.rate == pytest.approx(rate)
