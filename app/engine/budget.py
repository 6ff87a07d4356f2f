"""A fixed budget for drafting: limits of depth and probability, and a plain step at intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.app.engine.stopping import StopRules


@dataclass(slots=True)
class FixedBudget:
    """A ``should_extend`` with fixed limits."""

    rules: StopRules  # decides when the reply is over; a draft past its end is wasted
    rows: int = 8  # maximum depth of a draft
    least: float = 0.5  # minimum probability of a drafted path
    # one plain step per this many steps, so that the speed of plain decoding stays measured
    probe_every: int = 64
    # the interval while that speed is unknown; used in the first ``probe_every`` steps only, since the speed may stay
    # unknown on a busy machine
    search_every: int = 8
    known: Callable[[], bool] = lambda: True  # whether that speed is known
    step: int = 0  # steps so far; the caller of the loop counts them

    def __call__(self, probability: float, depth: int) -> bool:
        """Whether to draft a node at this depth, on a path of this probability."""
        if self.step % self.probe_every == self.probe_every // 8:
            return False
        searches = self.step < self.probe_every and self.step % self.search_every == self.search_every // 2
        if searches and not self.known():
            return False
        return probability >= self.least and depth <= min(self.rows, self.rules.left() - 1)


@dataclass(slots=True)
class WithinReply:
    """A ``should_extend`` that checks only the end of the reply, for a drafter that limits its own drafts."""

    rules: StopRules  # decides when the reply is over

    def __call__(self, probability: float, depth: int) -> bool:
        """Whether a node at this depth may still be accepted."""
        return depth < self.rules.left()
