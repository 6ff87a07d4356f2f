"""Ratios of speeds over many prompts, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.app import speed

Doubles = NDArray[np.float64]
_LEVEL: Final = 0.95
_RESAMPLES: Final = 4000
_SEED: Final = 20230
FEW: Final = 5  # with fewer prompts there is no interval: their extremes hold the true value less often


@dataclass(frozen=True, slots=True)
class TimedTokens:
    """Tokens and the time that they took."""

    tokens: float  # for several replies, their mean or sum
    seconds: float  # time of their steps, without prefill

    def __add__(self, other: TimedTokens) -> TimedTokens:
        return TimedTokens(self.tokens + other.tokens, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class ReplyPair:
    """The work of a drafter on a reply, or on all replies to a prompt, and that of plain decoding at the same time."""

    ours: TimedTokens
    plain: TimedTokens  # see ``between``

    def __add__(self, other: ReplyPair) -> ReplyPair:
        return ReplyPair(self.ours + other.ours, self.plain + other.plain)

    @property
    def speedup(self) -> float | None:
        return speed.speedup(self.ours.tokens, self.ours.seconds, self.plain.seconds / self.plain.tokens)


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio of two speeds, or a share, and its 95 % confidence interval."""

    value: float
    low: float | None = None  # lower end; None for fewer than ``FEW`` prompts
    high: float | None = None

    def text(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}x"
        return f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"


def between(before: TimedTokens, after: TimedTokens) -> TimedTokens:
    """The work of plain decoding at the time of a reply: its neighbours' mean, so that a steady change cancels out."""
    return TimedTokens((before.tokens + after.tokens) / 2, (before.seconds + after.seconds) / 2)


def speedup(prompts: Sequence[ReplyPair]) -> Interval:
    """Estimates a drafter's speed over plain decoding's, from the sums of at least one prompt.

    The ratio is of totals: all tokens over all seconds of the drafter, divided by the same of plain decoding. A mean of
    the prompts' ratios would give a short reply, whose time is mostly noise, the weight of a long one.

    The interval is a bootstrap over prompts: 4,000 times, n of the n prompts are drawn with replacement, each with all
    its turns and seeds and the adjacent plain replies. Its ends are percentiles, moved outwards because the percentile
    method is too narrow with few prompts ("expanded percentile", Hesterberg, "What Teachers Should Know About the
    Bootstrap", arXiv 1411.5279). The draws have a fixed seed: the same figures give the same interval.
    """
    return _estimate(_rows(prompts), None)


def measured(prompts: Sequence[ReplyPair]) -> Interval | None:
    """``speedup``, or None if too few tokens were written for a ratio."""
    return speedup(prompts) if sum(prompts[1:], prompts[0]).speedup is not None else None


def share(prompts: Sequence[tuple[int, int]]) -> Interval:
    """Estimates a share from each prompt's hits and trials; the interval is as in ``speedup``."""
    return _estimate(np.array([(right, of, 1.0, 1.0) for right, of in prompts], np.float64), None)


def advantage(ours: Sequence[ReplyPair], theirs: Sequence[ReplyPair]) -> Interval:
    """Estimates one drafter's speed over another's on the same prompts.

    Each speed is relative to the adjacent plain replies, so that a change of the machine between the two cancels out.
    The interval is as in ``speedup``; each draw of a prompt includes both drafters' replies.
    """
    return _estimate(_rows(ours), _rows(theirs))


def _rows(prompts: Sequence[ReplyPair]) -> Doubles:
    """[prompts, 4]: our tokens, our seconds, plain tokens, plain seconds."""
    return np.array([(p.ours.tokens, p.ours.seconds, p.plain.tokens, p.plain.seconds) for p in prompts], np.float64)


def _of_totals(sums: Doubles) -> Doubles:
    return sums[..., 0] / sums[..., 1] * sums[..., 3] / sums[..., 2]


def _estimate(rows: Doubles, others: Doubles | None) -> Interval:
    count = len(rows)

    def ratio(weights: Doubles) -> Doubles:
        """[draws] ratios; ``weights`` [draws, prompts] counts how often each prompt was drawn."""
        value = _of_totals(weights @ rows)
        return value if others is None else value / _of_totals(weights @ others)

    value = float(ratio(np.ones((1, count)))[0])
    if count < FEW:
        return Interval(value)
    draws = np.random.default_rng(_SEED).multinomial(count, np.full(count, 1 / count), _RESAMPLES)
    tail = _tail(count)
    low, high = np.quantile(ratio(draws.astype(np.float64)), (tail, 1 - tail))
    return Interval(value, float(low), float(high))


def _tail(count: int) -> float:
    """The share of draws cut off at each end: the tail of the normal distribution beyond Student's t, widened.

    t is approximated by Cornish and Fisher's expansion in 1 / degrees of freedom: within 1 % from ``FEW`` prompts on.
    """
    z, freedom = NormalDist().inv_cdf((1 + _LEVEL) / 2), count - 1
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return NormalDist().cdf(-t * math.sqrt(count / freedom))
