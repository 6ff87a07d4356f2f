"""Which passes count as disturbed, by the processor time that they got."""

import numpy as np
import pytest

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.cost_model import MEASURABLE, CostModel, Disturbance
from slipstream.drafters.autopilot.throughput import ThroughputMeter
from slipstream.drafters.base import NO_DRAFT, Step, Timings
from slipstream.models.types import Evaluation

pytestmark = pytest.mark.skipif(not MEASURABLE, reason="processor time is too coarse")


def plain_step(milliseconds: float, processor_ms: float) -> Step:
    return Step(
        NO_DRAFT,
        (),
        (1,),
        Evaluation(np.empty((1, 0), np.float32)),
        timings=Timings(evaluate=milliseconds, processor=processor_ms),
    )


def test_a_pass_that_waited_for_a_core_is_told_from_the_others() -> None:
    watch = Disturbance()
    assert not any(watch.add(took, 2 * took) for took in (10.0, 10.4, 9.8, 30.0))
    assert watch.add(25.0, 30.0) and not watch.add(10.0, 19.6)


def test_on_a_machine_that_stays_busy_passes_count_again_soon() -> None:
    watch = Disturbance()
    watch.add(10.0, 20.0)
    disturbed = [watch.add(20.0, 24.0) for _ in range(60)]
    assert disturbed[:30] == [True] * 30 and not disturbed[-1]


def test_where_a_gpu_computes_no_pass_counts_as_disturbed() -> None:
    watch = Disturbance()
    assert not any(watch.add(10.0, share) for share in (2.0, 0.1, 1.0, 0.0))


def test_a_disturbed_step_is_left_out_of_the_costs() -> None:
    throughput = ThroughputMeter(CostModel({1: 10.0, 8: 24.0}, {}, 0, 8))
    for _ in range(settings.KNOWN + 4):
        throughput.record(plain_step(10.0, 20.0), 10.0, 0.0, None, 1.0, None)
    rate, cost = throughput.rate, throughput.costs.rows[1]
    throughput.record(plain_step(500.0, 600.0), 500.0, 0.0, None, 1.0, None)
    assert throughput.costs.rows[1] == cost and throughput.rate == pytest.approx(rate)
