"""A fixed budget for drafting: limits of depth and probability, and a plain step at intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.app.engine.stopping import StopRules


@dataclass(slots=True)
class FixedBudget:
    """A ``should_extend`` with fixed limits."""

    rules: StopRules  # when the reply is over; drafting past its end is waste
    rows: int = 8  # most levels of a draft
    least: float = 0.5  # least probability of a path that is worth a row
    # one step in so many is plain, so that plain decoding's speed stays measured
    probe_every: int = 64
    # the same while that speed is unknown, in the reply's first ``probe_every`` steps only: on a busy machine it may
    # never become known
    search_every: int = 8
    known: Callable[[], bool] = lambda: True  # whether that speed is known
    step: int = 0  # steps so far; the loop's owner counts

    def __call__(self, probability: float, depth: int) -> bool:
        """Whether a node at this depth, on a path of this probability, pays."""
        if self.step % self.probe_every == self.probe_every // 8:
            return False
        searches = self.step < self.probe_every and self.step % self.search_every == self.search_every // 2
        if searches and not self.known():
            return False
        return probability >= self.least and depth <= min(self.rows, self.rules.left() - 1)


@dataclass(slots=True)
class WithinReply:
    """Whether a node fits the reply: the ``should_extend`` of a drafter that decides itself what pays."""

    rules: StopRules  # when the reply is over

    def __call__(self, probability: float, depth: int) -> bool:
        """Whether a node at this depth may still be accepted."""
        return depth < self.rules.left()
