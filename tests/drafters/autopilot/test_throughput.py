"""Steps that nobody timed count as much as those that were."""

import numpy as np
import pytest

from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.settings import DECAY, PRIOR
from slipstream.drafters.autopilot.throughput import ThroughputMeter
from slipstream.drafters.base import NO_DRAFT, Step, Timings
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.tree import chain_draft
from slipstream.models.types import Evaluation

ROWS = {1: 10.0, 2: 11.0, 4: 13.0, 64: 73.0}


def plain_step() -> Step:
    step = Step(NO_DRAFT, (), (1,), Evaluation(np.zeros((1, 4), np.float32)))
    step.timings.evaluate, step.timings.accept = 10.0, 0.5
    return step


def drafted_step() -> Step:
    draft = chain_draft([1, 2, 3], [0.9] * 3, "lookup")
    step = Step(draft, (0, 1), (1, 2, 9), Evaluation(np.zeros((4, 4), np.float32)))
    step.timings.evaluate, step.timings.accept = 13.0, 1.5
    return step


def throughput_and_arm() -> tuple[ThroughputMeter, Arm]:
    throughput, arm = ThroughputMeter(CostModel(ROWS, {}, 0, 64)), Arm("lookup", PromptLookup())
    throughput.record(plain_step(), 11.0, 0.0, None, 1.0, None)  # so that sampling and the rest are known
    return throughput, arm


def test_a_step_is_added_to_the_time_and_to_the_record_of_its_drafter() -> None:
    throughput, arm = throughput_and_arm()
    for _ in range(3):
        assert throughput.record(plain_step(), 11.0, 0.0, None, 1.0, None) == pytest.approx(0.0)
    took = 13.0 + 3 * 0.5 + 0.5
    lost = throughput.record(drafted_step(), took + 0.2, 0.2, arm, 2.8, None)
    assert lost == pytest.approx(took + 0.2 - 33.0) and throughput.total_ms == pytest.approx(44.0 + took + 0.2)
    assert arm.record.outcomes.observed == pytest.approx(DECAY * PRIOR + 2)
    throughput, arm = throughput_and_arm()
    for _ in range(100):
        slow = plain_step()
        slow.timings.evaluate = 15.0
        throughput.record(slow, 16.0, 0.0, None, 1.0, arm)
    assert throughput.costs.rows[1] == 10.0 and arm.record.slower == pytest.approx(1.5, rel=0.01)


def test_the_rate_is_that_of_the_latest_steps() -> None:
    throughput, arm = throughput_and_arm()
    assert throughput.rate == pytest.approx(1 / 11)
    for _ in range(40):
        throughput.record(drafted_step(), 15.0, 0.0, arm, 2.8, None)
        for _ in range(3):
            throughput.record(plain_step(), 11.0, 0.0, None, 1.0, None)
    assert throughput.rate == pytest.approx(6 / 48, rel=0.02)
    objective = throughput.objective()
    assert objective.rate == throughput.rate and objective.token == pytest.approx(1 - throughput.rate * 0.5)
    for _ in range(100):  # drafts in vain: worth less than plain decoding, which is the least that is reached
        throughput.record(drafted_step(), 60.0, 45.0, arm, 2.8, None)
    assert throughput.rate < 0.06 and throughput.objective().rate == pytest.approx(1 / throughput.plain_ms)


def test_a_disturbed_step_counts_as_three_usual_ones() -> None:
    throughput, _ = throughput_and_arm()
    for _ in range(20):
        throughput.record(plain_step(), 11.0, 0.0, None, 1.0, None)
    disturbed = plain_step()
    disturbed.timings.evaluate, disturbed.timings.accept = 1000.0, 100.0
    before = throughput.total_ms
    throughput.record(disturbed, 2000.0, 0.0, None, 1.0, None)
    assert throughput.total_ms - before == pytest.approx(3 * 11.0, rel=0.1)
    assert throughput.plain_ms < 12.0


def test_plain_steps_that_are_not_measured_take_what_such_steps_take() -> None:
    measured, _ = throughput_and_arm()
    coasting, _ = throughput_and_arm()
    for _ in range(40):
        for throughput, drafting_ms in ((measured, 4.0), (coasting, 4.0)):
            throughput.record(drafted_step(), 15.0 + drafting_ms, drafting_ms, None, 2.8, None)
        for _ in range(3):
            measured.record(plain_step(), 11.0, 0.0, None, 1.0, None)
        coasting.unmeasured += 3
    for throughput in (measured, coasting):  # a step adds those before it
        throughput.record(plain_step(), 11.0, 0.0, None, 1.0, None)
    assert coasting.total_ms == pytest.approx(measured.total_ms, rel=0.01)
    assert coasting.rate == pytest.approx(measured.rate, rel=0.01)


def test_passes_that_return_hidden_states_show_what_their_rows_cost() -> None:
    costs = CostModel({1: 10.0, 2: 12.0, 4: 14.0}, {}, 0, 16)  # what eight rows cost is a guess
    meter, arm = ThroughputMeter(costs), Arm("head", PromptLookup())
    draft = chain_draft([5] * 7, [0.5] * 7, "head")
    for _ in range(30):
        step = Step(draft, (), (5,), Evaluation(np.zeros((8, 8), np.float32)), timings=Timings(evaluate=40.0))
        meter.record(step, 41.0, 0.5, arm, 1.0, hidden=arm)
    assert arm.record.slower == 1.0 and costs.rows[8] == pytest.approx(40.0, rel=0.1)
    assert costs.rows[2] < 16.0
