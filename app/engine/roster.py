"""Who of the drafters is awake: who leads, who is tried, and who is asked because asking costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slipstream.app.engine.arm import LIGHT, Arm
from slipstream.app.engine.books import Settled
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.meter import Meter
from slipstream.app.engine.probing import Purse, trials
from slipstream.models.types import History

_WIDE: Final = 33  # rows among which the least price of a row is looked for
_PATIENCE: Final = 0.5  # plain steps that a light one may cost before it shows a gain
_THOROUGH: Final = 32  # steps between two looks at all, where a look at those that are awake shows nothing new
_NEW: Final = 0.1  # weight of the latest step in an average


class Roster:
    """Lets drafters rest, and wakes them.

    Those that rest neither draft nor hear. They are tried again now and then, and so is plain decoding, out of a small
    share of the time.

    Attributes:
        awake: Those that hear every step.
        lead: Of those whose asking costs something, the one that promises most; None if plain decoding promises more.
        purse: Pays for what is tried.
        slope: Milliseconds that one row more costs at the least.
        quiet: Whether nothing is tried, and those that are awake cost next to nothing.
    """

    def __init__(self, arms: Sequence[Arm], meter: Meter, costs: Costs, most: int, known: bool) -> None:
        """All rest at first.

        Args:
            arms: The drafters.
            meter: What time and tokens are worth.
            costs: Of the target.
            most: Most rows of a pass.
            known: Whether the drafters' records are of an earlier run.
        """
        self.awake: list[Arm] = []
        self.lead: Arm | None = None
        self.quiet = True
        self.slope = costs.slope(min(_WIDE, most))
        self.purse = Purse(costs.rows[1], self.slope, known)
        self._arms, self._meter, self._costs, self._most = arms, meter, costs, most
        self._choosing_ms = 0.0  # what the autopilot's own work takes in a step in which somebody is awake

    @property
    def hidden(self) -> frozenset[int]:
        """The hidden points that those who are awake ask for."""
        return frozenset[int]().union(*(arm.drafter.needs.hidden for arm in self.awake))

    def begin(self, history: History) -> None:
        """Starts a reply: those that are awake hear the prompt."""
        self._costs.at(len(history.tokens))
        for arm in self._arms:
            arm.begin()
        for arm in self.awake:
            arm.wake(history)

    def settle(self, settled: Settled, own_ms: float) -> None:
        """Takes what the latest steps came to, and what choosing took in the last; ends a trial that lost enough."""
        if self.awake:
            self._choosing_ms *= (1 - _NEW) ** settled.plain
            self._choosing_ms += _NEW * (min(own_ms, 1.0) - self._choosing_ms)
        plain_ms = self._meter.plain_ms
        self.purse.earn(settled.milliseconds, plain_ms)
        if self.purse.tried and self.purse.lose(settled.lost, plain_ms):
            self.end_trial()

    def look(self, history: History, step: int, since_plain: int) -> bool:
        """Decides who rests, who leads, and what is tried; one that reads the text first is given the time for it.

        Args:
            history: The text.
            step: The number of this step.
            since_plain: Steps without a plain one.

        Returns:
            Whether anybody may have been woken or let rest.
        """
        tried, same = self.purse.tried, not self.purse.can_pay and all(map(self._stays, self.awake))
        if same and self.quiet and (step % _THOROUGH or not self.awake):
            return False
        if tried and tried.drafter.reading_ms(history):
            return False
        self._costs.follow(len(history.tokens))
        self.slope = self._costs.slope(min(_WIDE, self._most))
        terms = self._meter.terms()
        known = [arm for arm in self._arms if arm.record.judged and not arm.cheap(terms.rows[1])]
        self.lead = max(known, key=lambda arm: arm.promise(terms), default=None)
        if self.lead and self.lead.promise(terms) <= terms.value(1.0, 1) + terms.rate * self._choosing_ms:
            self.lead = None
        awake = [arm for arm in self.awake if arm is not self.lead and self._stays(arm)]
        if self.lead:
            awake.append(self.lead)
        self.purse.end(self._meter.plain_ms)
        resting = [(arm, arm.cheap(terms.rows[1])) for arm in self._arms if arm not in awake]
        waits, choosing_ms = (since_plain, 0.0) if awake else (0, self._choosing_ms)
        self.purse.choose(trials(resting, self.lead, terms, history, step, waits, choosing_ms))
        if self.purse.tried:
            awake.append(self.purse.tried)
        for arm in self.awake:
            if arm not in awake:
                arm.rest()
        for arm in awake:
            arm.wake(history)
        self.awake = awake
        self.quiet = not (self.purse.trial or self.lead) and all(arm.cheap(terms.rows[1], LIGHT) for arm in awake)
        return True

    def end_trial(self) -> None:
        """Lets the one that is tried rest again."""
        arm = self.purse.end(self._meter.plain_ms)
        if arm and arm is not self.lead:
            arm.rest()
            self.awake.remove(arm)

    def wake_light(self, history: History) -> None:
        """Wakes the best of those that cost little, if none is awake: the text repeats itself, and it may copy."""
        light = [arm for arm in self._arms if arm.cheap(self._costs.rows[1], LIGHT)]
        if any(arm in self.awake for arm in light):
            return
        best = max(light, key=lambda arm: (arm.record.gain_ms, -arm.costs_ms), default=None)
        if best:
            self.awake.append(best)
            best.wake(history)

    def _stays(self, arm: Arm) -> bool:
        """Whether it is worth being asked at every step."""
        if arm.hidden or arm.record.ahead:
            return False
        step_ms = arm.costs_ms + (0.0 if self.lead else self._choosing_ms)
        settling = arm.cheap(self._costs.rows[1], LIGHT) and arm.settling(step_ms, _PATIENCE * self._meter.plain_ms)
        return settling or arm.record.gain_ms > step_ms
