"""What the steps of a reply took and brought; most of those that go by themselves are not timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.choice import PLAIN, Tally
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.meter import Meter
from slipstream.drafters.base import Step


class Untimed(NamedTuple):
    """A step with a draft that nobody timed.

    Attributes:
        arm: Who drafted it.
        expected: Tokens that were expected of it.
        tokens: Tokens that came.
        rows: Rows of its pass.
    """

    arm: Arm
    expected: float
    tokens: int
    rows: int


class Settled(NamedTuple):
    """What the steps since the last account came to.

    Attributes:
        milliseconds: Of all of them.
        lost: Of the timed one, beyond what plain decoding would have taken for its tokens.
        plain: How many had no draft and were not timed.
    """

    milliseconds: float
    lost: float
    plain: int


class Books:
    """Keeps account of time and tokens: a step that is not timed took what such a step takes.

    Attributes:
        meter: What time and tokens are worth.
    """

    def __init__(self, costs: Costs) -> None:
        """Begins with what a pass costs."""
        self.meter = Meter(costs)
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._plain = 0
        self._drafted: list[Untimed] = []
        self._passed_ms = 0.0  # of steps that were not timed, since the last account

    @property
    def tallies(self) -> Mapping[str, Tally]:
        """What came of each drafter's steps in this reply."""
        self._catch_up()
        return self._tallies

    def begin(self) -> None:
        """A reply begins."""
        self._tallies.clear()
        self._plain = 0
        self._drafted.clear()

    def plain(self) -> None:
        """Notes a step without a draft that is not timed."""
        self._plain += 1

    def drafted(self, arm: Arm, expected: float, tokens: int, rows: int) -> None:
        """Notes a step with a draft that is not timed (see ``Untimed``)."""
        self._drafted.append(Untimed(arm, expected, tokens, rows))

    def settle(
        self, step: Step, wall_ms: float, aside_ms: float, who: Arm | None, expected: float, asks: Arm | None
    ) -> Settled:
        """Takes a timed step, and with it those before it that were not.

        Args:
            step: With its timings.
            wall_ms: From its start to the start of the next one.
            aside_ms: Of that, in drafters and in choosing.
            who: Who drafted it; None for a plain one.
            expected: Tokens that were expected of it.
            asks: The drafter for which the pass handed out hidden states, if there is one.
        """
        meter, count, plain = self.meter, len(step.tokens), self._plain
        self._catch_up()
        took = meter.hear(step, wall_ms, aside_ms, asks)
        self._take(who, expected, count, took)
        passed, self._passed_ms = self._passed_ms + took, 0.0
        return Settled(passed, took - meter.plain_ms * count, plain)

    def _take(self, who: Arm | None, expected: float, count: int, took: float) -> None:
        if who:
            who.chosen(expected - 1, count - 1)
        self._tallies[who.name if who else PLAIN].add(expected, count, took, self.meter.plain_ms * count)

    def _catch_up(self) -> None:
        """Takes the steps that were not timed."""
        if self._plain:
            took, self._plain, steps = self.meter.passed(self._plain), 0, self._plain
            self._tallies[PLAIN].add(steps, steps, took, took, steps)
            self._passed_ms += took
        for arm, expected, tokens, rows in self._drafted:
            took = self.meter.passed(1, rows, tokens, arm.costs_ms)
            self._take(arm, expected, tokens, took)
            self._passed_ms += took
        self._drafted.clear()
