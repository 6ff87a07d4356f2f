"""Measures the time and tokens of steps: the rate of the latest steps, and the parts of a step's time."""

from typing import Final, NamedTuple

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.cost_model import CostModel, Disturbance, clipped
from slipstream.drafters.autopilot.tree_pruning import Objective
from slipstream.drafters.base import Plain, Step

PLAIN: Final = Plain.name


class Decision(NamedTuple):
    """The autopilot's choice for a step."""

    drafter: str = PLAIN
    nodes: int = 0
    cost: float = 1.0  # time of the pass, in plain passes
    expected: float = 1.0  # tokens expected of the step
    plain_ms: float = 0.0  # of a whole plain step
    trial: bool = False


class ThroughputMeter:
    """Measures every step, and derives the value of tokens and time.

    Attributes:
        costs: Milliseconds of a pass by its rows; every step refines them.
        unmeasured: Plain steps since the latest measured step; the autopilot counts them here.
        sample_ms: Milliseconds of sampling one token.
        rest_ms: Milliseconds of a step apart from the pass, drafting and sampling.
        plain_ms: Milliseconds of a whole plain step.
        rate: Tokens per millisecond of the latest steps; 0 before the first.
        total_ms: Milliseconds of all steps so far, without disturbances.
    """

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self.unmeasured = 0
        self._disturbance = Disturbance()
        self.sample_ms = self.rest_ms = self.rate = self.total_ms = 0.0
        self.plain_ms = costs.rows[1]
        self._tokens = self._ms = 0.0  # of the latest steps, older ones decayed
        self._steps = 0

    def objective(self) -> Objective:
        """The value of tokens and time now."""
        best = max(self.rate, 1 / self.plain_ms)
        return Objective(best, 1 - best * self.sample_ms, self.costs.rows)

    def record(
        self,
        step: Step,
        wall_ms: float,
        drafting_ms: float,
        drafter: Arm | None,
        expected: float,
        hidden: Arm | None,
    ) -> float:
        """Adds a step; returns how many milliseconds plain decoding would have saved.

        Args:
            wall_ms: Milliseconds from its start to the start of the next step.
            drafting_ms: Milliseconds spent in drafters and in the autopilot.
            hidden: The drafter for which the pass returned hidden states, if any.
        """
        self._add_unmeasured()
        times, rows, tokens = step.timings, max(self.costs.width.rows, 1 + len(step.draft.tree)), len(step.tokens)
        usual, evaluate = self.costs.rows[rows], times.evaluate
        if self._disturbance.add(evaluate, times.processor):
            evaluate = usual * (hidden.record.slower if hidden else 1)
        elif hidden:
            if rows == 1:
                hidden.add_slowdown(evaluate / usual)
            else:
                self.costs.observe(rows, evaluate / hidden.record.slower)
            evaluate = clipped(evaluate, usual * hidden.record.slower)
        else:
            self.costs.observe(rows, evaluate)
            evaluate = clipped(evaluate, usual)
        sample = times.accept / tokens
        rest = max(0.0, wall_ms - times.evaluate - times.accept - drafting_ms)
        if self._steps:
            sample, rest = clipped(sample, self.sample_ms), clipped(rest, self.rest_ms)
        self._steps += 1
        weight = max(settings.NEW, 1 / self._steps)
        self.sample_ms += weight * (sample - self.sample_ms)
        self.rest_ms += weight * (rest - self.rest_ms)
        took = evaluate + sample * tokens + rest + drafting_ms
        self._tokens = settings.DECAY * self._tokens + tokens
        self._ms = settings.DECAY * self._ms + took
        self.rate = self._tokens / self._ms
        self.plain_ms = self.costs.rows[1] + self.sample_ms + self.rest_ms
        if drafter:
            drafter.add_outcome(expected - 1, tokens - 1)
        self.total_ms += took
        if not drafter and not hidden:  # the pass itself was a plain one, as slow as the machine was then
            return usual - self.costs.rows[1] + drafting_ms
        return took - tokens * self.plain_ms

    def _add_unmeasured(self) -> None:
        """Adds the plain steps that were not measured, at the usual time of a plain step."""
        steps, self.unmeasured = self.unmeasured, 0
        if steps:
            kept = settings.DECAY**steps
            weight = (1 - kept) / (1 - settings.DECAY)
            self._tokens = kept * self._tokens + weight
            self._ms = kept * self._ms + weight * self.plain_ms
            self.rate = self._tokens / self._ms
            self.total_ms += steps * self.plain_ms
            self.costs.plain += steps
