"""When a drafter that rests is tried again, and what that may cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.pruning import Terms
from slipstream.models.types import History

SHARE: Final = 0.004
"""Share of the time that may be lost to trying."""

_FIRST: Final = (2.0, 10.0)
"""Plain steps that may be lost at the very first, when nothing is known: few where rows are dear, more where not."""

_MOST: Final = 12.0  # plain steps that can be saved up; what costs more than that is tried then, and owed
_DEBT: Final = 100.0  # plain steps that can be owed
ENOUGH: Final = 1.5
"""Plain steps that a trial may lose beyond what was expected, before it ends."""

LASTS: Final = 4
"""Steps that a trial lasts, and between two looks at who rests."""

_LISTEN: Final = 24  # steps that a cheap drafter is asked before it may rest again
_PLAIN_EVERY: Final = 128  # steps without a plain one after which plain decoding is tried again
_WAKING: Final = 0.05  # of a plain pass: what waking a drafter is taken to cost
_AT_BEST: Final = (3.0, 4)
"""Tokens and rows of a good step: a drafter that takes so long that not even such steps pay is not tried."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Something that may be tried.

    Attributes:
        arm: A drafter that rests; None for plain decoding.
        milliseconds: What trying it is expected to lose.
        waited: Steps since it was asked last.
    """

    arm: Arm | None
    milliseconds: float
    waited: int


class Purse:
    """The time that may be lost to trying: it comes with the time that passes, and trials spend it.

    Of the trials that can be paid that one is chosen which waited longest for its price: what may nearly win is tried
    often, what loses much is tried rarely.

    Attributes:
        milliseconds: What is in it.
        least: The price of the cheapest trial when last asked.
        trial: What is tried now.
    """

    def __init__(self, plain_ms: float, row_ms: float, known: bool) -> None:
        """Starts with a little, unless the drafters are known from an earlier run.

        Args:
            plain_ms: Milliseconds of a plain step.
            row_ms: Milliseconds that a row more costs at the least.
            known: Whether the drafters are known.
        """
        least, most = _FIRST
        self.milliseconds = 0.0 if known else min(max(plain_ms / max(row_ms, 1e-6), least), most) * plain_ms
        self.least = 0.0
        self.trial: Trial | None = None
        self._most_ms = _MOST * plain_ms
        self._lost_ms = 0.0  # by the trial

    @property
    def can_pay(self) -> bool:
        """Whether the cheapest trial could be paid, as far as is known."""
        return self.milliseconds >= self.least

    @property
    def tried(self) -> Arm | None:
        """Who is tried now; None where nothing is, or plain decoding."""
        return self.trial.arm if self.trial else None

    def earn(self, milliseconds: float, plain_ms: float) -> None:
        """Takes the time of a step."""
        self._most_ms = _MOST * plain_ms
        self.milliseconds = min(self.milliseconds + SHARE * milliseconds, self._most_ms)

    def lose(self, milliseconds: float, plain_ms: float) -> bool:
        """Takes what a step of the trial lost; says whether it has lost so much that it should end."""
        self._lost_ms += milliseconds
        return self.trial is not None and self._lost_ms > self.trial.milliseconds + ENOUGH * plain_ms

    def end(self, plain_ms: float) -> Arm | None:
        """Ends the trial: nothing is tried until what it lost beyond its price has come in again.

        Returns:
            Who was tried.
        """
        trial, self.trial = self.trial, None
        if trial:
            beyond = max(0.0, self._lost_ms - trial.milliseconds)
            self.milliseconds = max(self.milliseconds - beyond, -_DEBT * plain_ms)
        self._lost_ms = 0.0
        return trial.arm if trial else None

    def choose(self, trials: Iterable[Trial]) -> None:
        """Pays for the trial whose turn it is, if one can be paid."""
        best, most, self.least = None, 0.0, inf
        for trial in trials:
            price, urgency = min(trial.milliseconds, self._most_ms), trial.waited / trial.milliseconds
            self.least = min(self.least, price)
            if price <= self.milliseconds and urgency > most:
                best, most = trial, urgency
        if best:
            self.milliseconds -= best.milliseconds
        self.trial = best


def trials(
    resting: Iterable[tuple[Arm, bool]],
    lead: Arm | None,
    terms: Terms,
    history: History,
    step: int,
    since_plain: int,
    choosing_ms: float,
) -> Iterator[Trial]:
    """What could be tried, with what it is expected to lose.

    Args:
        resting: Drafters that rest, and whether they cost next to nothing.
        lead: The one that leads of those that cost something, if there is one.
        terms: What tokens and time are worth.
        history: What would be drafted after.
        step: The number of this step.
        since_plain: Steps without a plain one; 0 while all rest.
        choosing_ms: What choosing takes in a step, if nobody else is awake.
    """
    plain = terms.value(1.0, 1)
    best = max(plain, lead.promise(terms)) if lead else plain
    waking = _WAKING * terms.rows[1]
    for arm, cheap in resting:
        if terms.value(*_AT_BEST, arm.costs_ms) <= plain:
            continue
        if cheap:
            loss = _LISTEN * (arm.costs_ms + choosing_ms)
        else:
            loss = LASTS * (max(0.0, best - arm.promise(terms)) / terms.rate + choosing_ms)
            loss += arm.drafter.reading_ms(history)
        yield Trial(arm, loss + waking, step - arm.last)
    if since_plain > _PLAIN_EVERY:
        yield Trial(None, LASTS * (best - plain) / terms.rate + waking, since_plain)
