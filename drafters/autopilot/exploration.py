"""Trials of idle drafters, and the budget for what they lose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.tree_pruning import Objective
from slipstream.models.types import History


@dataclass(frozen=True, slots=True)
class Trial:
    """Something that may be tried.

    Attributes:
        arm: An idle drafter; None for plain decoding.
        milliseconds: What the trial is expected to lose.
        waited: Steps since it drafted last.
    """

    arm: Arm | None
    milliseconds: float
    waited: int


class Exploration:
    """The budget of trials: a share of the time that passes, spent on what trials lose.

    Of the trials within the budget, the one that waited longest for its price begins: a drafter that may nearly win is
    tried often, a costly one rarely.

    Attributes:
        milliseconds: The budget.
        trial: The trial under way.
    """

    def __init__(self, plain_ms: float, row_ms: float, known: bool) -> None:
        """Starts with a small budget, unless the drafters are known from an earlier run.

        Args:
            plain_ms: Milliseconds of a plain step.
            row_ms: Least milliseconds of one more row: where rows are cheap, first trials may lose more.
            known: Whether the drafters are known.
        """
        least, most = settings.FIRST_STEPS
        self.milliseconds = 0.0 if known else min(max(plain_ms / max(row_ms, 1e-6), least), most) * plain_ms
        self.trial: Trial | None = None
        self._price = 0.0  # of the cheapest trial at the last choice
        self._most_ms = settings.MOST_SAVED * plain_ms
        self._lost_ms = 0.0  # by this trial

    @property
    def affordable(self) -> bool:
        """Whether the cheapest trial is within the budget, by the prices of the last choice."""
        return self.milliseconds >= self._price

    @property
    def arm(self) -> Arm | None:
        """The drafter that is tried; None if there is no trial, or one of plain decoding."""
        return self.trial.arm if self.trial else None

    def earn(self, milliseconds: float, plain_ms: float) -> None:
        """Adds the share of a step's time."""
        self._most_ms = settings.MOST_SAVED * plain_ms
        self.milliseconds = min(self.milliseconds + settings.EXPLORE_SHARE * milliseconds, self._most_ms)

    def lose(self, milliseconds: float, plain_ms: float) -> bool:
        """Adds what a step of the trial lost; returns whether the trial has lost so much that it should end."""
        self._lost_ms += milliseconds
        return self.trial is not None and self._lost_ms > self.trial.milliseconds + settings.TRIAL_LOSS * plain_ms

    def end(self, plain_ms: float) -> Arm | None:
        """Ends the trial, and takes what it lost beyond its price from the budget.

        Returns:
            The drafter that was tried.
        """
        trial, self.trial = self.trial, None
        if trial:
            beyond = max(0.0, self._lost_ms - trial.milliseconds)
            self.milliseconds = max(self.milliseconds - beyond, -settings.MOST_OWED * plain_ms)
        self._lost_ms = 0.0
        return trial.arm if trial else None

    def begin(self, trials: Iterable[Trial]) -> None:
        """Begins the most urgent trial within the budget, if there is one, and spends its price."""
        best, most, self._price = None, 0.0, inf
        for trial in trials:
            price, urgency = min(trial.milliseconds, self._most_ms), trial.waited / trial.milliseconds
            self._price = min(self._price, price)
            if price <= self.milliseconds and urgency > most:
                best, most = trial, urgency
        if best:
            self.milliseconds -= best.milliseconds
        self.trial = best


def trials(
    idle: Iterable[Arm],
    leader: Arm | None,
    objective: Objective,
    history: History,
    step: int,
    since_plain: int,
    own_ms: float,
) -> Iterator[Trial]:
    """The possible trials, with what each is expected to lose.

    Args:
        idle: Drafters that are not active.
        leader: The active drafter that is not cheap, if there is one.
        objective: What tokens and time are worth.
        history: The text so far.
        step: Number of this step.
        since_plain: Steps without a plain one; 0 while no drafter is active.
        own_ms: Milliseconds of the autopilot's own work in a step, where no other drafter is active.
    """
    plain = objective.plain
    best = max(plain, leader.value(objective)) if leader else plain
    activation = settings.ACTIVATION * objective.rows[1]
    for arm in idle:
        if objective.value(settings.BEST_TOKENS, settings.BEST_ROWS, arm.calls_ms) <= plain:
            continue
        if arm.cheap(objective.rows[1]):
            loss = settings.LISTEN_STEPS * (arm.calls_ms + own_ms)
        else:
            loss = settings.REVIEW_STEPS * (max(0.0, best - arm.value(objective)) / objective.rate + own_ms)
            loss += arm.drafter.reading_ms(history)
        yield Trial(arm, loss + activation, step - arm.last_step)
    if since_plain > settings.PLAIN_STEPS:
        yield Trial(None, settings.REVIEW_STEPS * (best - plain) / objective.rate + activation, since_plain)
