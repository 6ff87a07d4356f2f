"""Which passes count as disturbed, by the processor time that they got."""

from __future__ import annotations

import os
import subprocess
import sys
from time import perf_counter, process_time

import numpy as np
import pytest

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.cost_model import MEASURABLE, CostModel, Disturbance, undisturbed
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


def test_the_times_of_undisturbed_passes_are_chosen() -> None:
    assert undisturbed([(10.0, 20.0), (25.0, 31.0), (11.0, 21.9)]) == [10.0, 11.0]
    assert undisturbed([(10.0, 0.0), (11.0, 0.0)]) == [10.0, 11.0]
    assert undisturbed([]) == []


def test_a_disturbed_step_is_left_out_of_the_costs() -> None:
    throughput = ThroughputMeter(CostModel({1: 10.0, 8: 24.0}, {}, 0, 8))
    for _ in range(settings.KNOWN + 4):
        throughput.record(plain_step(10.0, 20.0), 10.0, 0.0, None, 1.0, None)
    rate, cost = throughput.rate, throughput.costs.rows[1]
    throughput.record(plain_step(500.0, 600.0), 500.0, 0.0, None, 1.0, None)
    assert throughput.costs.rows[1] == cost and throughput.rate == pytest.approx(rate)


if sys.platform == "linux":  # elsewhere, a core cannot be chosen

    @pytest.mark.slow
    def test_a_program_on_the_same_core_is_seen() -> None:
        def compute(seconds: float) -> tuple[float, float]:
            began, processor = perf_counter(), process_time()
            while perf_counter() - began < seconds:
                pass
            return perf_counter() - began, process_time() - processor

        cores = os.sched_getaffinity(0)
        other = None
        try:
            os.sched_setaffinity(0, {min(cores)})
            alone = max((compute(0.02) for _ in range(200)), key=lambda one: one[1] / one[0])  # others may be busy too
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            beside = [compute(0.05) for _ in range(40)][20:]
            assert len(undisturbed([alone, *beside])) < 15
        finally:
            os.sched_setaffinity(0, cores)
            if other:
                other.kill()
                other.wait()
