"""What tokens and time were worth in the latest steps."""

from __future__ import annotations

from typing import Final

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.pruning import Terms
from slipstream.drafters.base import Step

_FADE: Final = 0.97  # of an older step, with each one after it
_NEW: Final = 0.05  # weight of the latest step in an average
_DISTURBED: Final = 3.0
"""A step that took more times as long as expected was held up by something else."""


class Meter:
    """Follows the time that steps take, phase by phase, and the rate that they reach.

    Attributes:
        costs: Of a pass by its rows; refined with every step.
        rest_ms: Milliseconds of a step outside of the pass, drafting and drawing left out.
        pick_ms: Milliseconds that drawing one token takes.
    """

    def __init__(self, costs: Costs) -> None:
        """Knows what a pass costs, and nothing else yet."""
        self.costs = costs
        self.rest_ms = self.pick_ms = 0.0
        self._tokens = self._ms = 0.0
        self._count = 0

    @property
    def plain_ms(self) -> float:
        """Milliseconds of a plain step, all in all."""
        return self.costs.rows[1] + self.pick_ms + self.rest_ms

    @property
    def rate(self) -> float:
        """Tokens a millisecond of the latest steps; 0 before the first."""
        return self._tokens / self._ms if self._ms else 0.0

    def terms(self) -> Terms:
        """What tokens and time are worth now: at least what plain decoding reaches."""
        best = max(self.rate, 1 / self.plain_ms)
        return Terms(best, 1 - best * self.pick_ms, self.costs.rows)

    def hear(self, step: Step, wall_ms: float, drafters_ms: float, asks: Arm | None) -> float:
        """Takes a step.

        Args:
            step: With its timings.
            wall_ms: From its start to the start of the next one.
            drafters_ms: Spent in drafters, drafting and hearing.
            asks: The drafter for which the pass handed out hidden states, if there is one.

        Returns:
            Milliseconds of the step, less where something else held it up.
        """
        times, rows = step.timings, 1 + len(step.draft.tree)
        usual = self.costs.rows[rows]
        if asks:
            asks.passed(times.evaluate / usual)
            usual *= asks.record.slower
        else:
            self.costs.hear(rows, times.evaluate)
        pick = times.accept / len(step.tokens)
        rest = max(0.0, wall_ms - times.evaluate - times.accept - drafters_ms)
        if self._count:
            pick, rest = min(pick, _DISTURBED * self.pick_ms), min(rest, _DISTURBED * self.rest_ms + 0.01 * usual)
        self._count += 1
        weight = max(_NEW, 1 / self._count)
        self.pick_ms += weight * (pick - self.pick_ms)
        self.rest_ms += weight * (rest - self.rest_ms)
        took = min(times.evaluate, _DISTURBED * usual) + pick * len(step.tokens) + rest + drafters_ms
        self._add(1, len(step.tokens), took)
        return took

    def passed(self, steps: int, rows: int = 1, tokens: int = 1, drafting_ms: float = 0.0) -> float:
        """Takes some steps alike that were not timed.

        Args:
            steps: How many.
            rows: Of the pass of each.
            tokens: That each brought.
            drafting_ms: That drafting took in each.

        Returns:
            Milliseconds that they took, all in all, as far as is known.
        """
        took = self.costs.rows[rows] + tokens * self.pick_ms + self.rest_ms + drafting_ms
        self._add(steps, tokens, took)
        return steps * took

    def _add(self, steps: int, tokens: int, milliseconds: float) -> None:
        """Brings the rate up to date with some steps alike."""
        kept = _FADE**steps
        weight = (1 - kept) / (1 - _FADE)
        self._tokens = kept * self._tokens + weight * tokens
        self._ms = kept * self._ms + weight * milliseconds
