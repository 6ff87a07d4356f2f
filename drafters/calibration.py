"""Corrects drafters' probabilities with the tokens that the target drew."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, Generic, TypeVar

from slipstream.drafters.base import Step
from slipstream.models.sampling.top_k import Doubles
from slipstream.models.types import History, Token

Value = TypeVar("Value", float, Doubles)
_BOUNDS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_WEIGHT: Final = 8.0  # weight of the probability itself, in outcomes
_DECAY: Final = 0.99  # the weight of an outcome halves after 69 more
_MOST: Final = 0.98  # largest probability of a copied token
_LONGEST: Final = 16  # tokens; longer matches count as of this length


@dataclass(slots=True)
class Ratio(Generic[Value]):
    """The ratio of observed to expected outcomes, recent ones counting more; for arrays, a ratio for each element."""

    decay: float  # factor on earlier outcomes whenever one is added
    observed: Value  # weighted sum of what was observed
    expected: Value  # sum of what was expected, with the same weights

    def add(self, observed: Value, expected: Value) -> None:
        """Adds an outcome; for a share of successes, ``observed`` is 0 or 1 and ``expected`` is 1."""
        self.observed = self.decay * self.observed + observed
        self.expected = self.decay * self.expected + expected

    def value(self) -> Value:
        """The ratio; ``expected`` must not be 0."""
        return self.observed / self.expected

    def given(self, prior: Value, weight: float) -> Value:
        """The ratio after adding a prior: ``weight`` more expected, and ``weight * prior`` more observed."""
        return (self.observed + weight * prior) / (self.expected + weight)


class ProbabilityCalibration:
    """Maps a drafter's probability to the measured one: how often the target drew recent tokens of similar probability.

    Transformers adapts one threshold, the probability at which it stops (``assistant_confidence_threshold``); here the
    probability itself is corrected, and the caller decides whether the token pays. An outcome is known if the target
    has drawn its own token at that place, even if the draft had stopped before. Tokens below the first rejection have
    no outcome; they do not count as wrong.
    """

    def __init__(self) -> None:
        self._ratios = [Ratio(_DECAY, 0.0, 0.0) for _ in range(len(_BOUNDS) + 1)]

    def corrected(self, prob: float) -> float:
        """How often a token of this probability is right, 0 to 1."""
        return self._ratios[bisect_right(_BOUNDS, prob)].given(prob, _WEIGHT)

    def add(self, prob: float, right: bool) -> None:
        self._ratios[bisect_right(_BOUNDS, prob)].add(right, 1.0)


def copy_probability(matched: int) -> float:
    """The prior probability that the next copied token is right after ``matched`` equal tokens.

    It is 0.45 at 2 and 0.95 at 16, linear in the logarithm, and constant above. A copied token lengthens the match by
    one, so later tokens of a draft are more probable.
    """
    return min(0.95, 0.45 + (math.log2(max(matched, 1)) - 1) / 6)


class MatchTrust:
    """How often the target continued a match as the indexed text did, by the length of the match.

    For each length: the ratio of right tokens to the sum of the guessed shares; ``copy_probability`` is the prior.
    """

    def __init__(self) -> None:
        self._ratios = [Ratio(_DECAY, 0.0, 0.0) for _ in range(_LONGEST + 1)]

    def trust(self, matched: int) -> float:
        """The factor, 0 to 0.98, that turns a share into a probability after a match of this length."""
        at = min(matched, _LONGEST)
        return min(_MOST, self._ratios[at].given(copy_probability(at), _WEIGHT))

    def add(self, matched: int, share: float, right: bool) -> None:
        """Adds one token of the target; ``share`` is the sum of the shares of the guessed tokens."""
        self._ratios[min(matched, _LONGEST)].add(right, share)


class RankedTokens:
    """Stores ranked tokens after each path of a draft, and calibrates their probabilities with the target's tokens."""

    def __init__(self) -> None:
        self._calibration = ProbabilityCalibration()
        self._at = -1  # length of the history at the last draft
        self._ranked: dict[tuple[Token, ...], tuple[Sequence[Token], Sequence[float]]] = {}  # by the tokens before them

    def begin(self, history: History) -> None:
        self._at = len(history.tokens)
        self._ranked.clear()

    def add(self, above: tuple[Token, ...], ranked: Sequence[Token], shares: Sequence[float]) -> list[float]:
        """Stores the tokens that may follow a path, and returns their corrected probabilities."""
        self._ranked[above] = ranked, shares
        return list(map(self._calibration.corrected, shares))

    def __contains__(self, above: tuple[Token, ...]) -> bool:
        return above in self._ranked

    def after(self, above: tuple[Token, ...]) -> list[tuple[Token, float]]:
        """The tokens stored for a path with their corrected probabilities, the most probable first."""
        ranked, shares = self._ranked[above]
        corrected = map(self._calibration.corrected, shares)
        return sorted(zip(ranked, corrected, strict=True), key=itemgetter(1), reverse=True)

    def observe(self, history: History, step: Step) -> None:
        """Calibrates the probabilities with the step's tokens, even if the step evaluated another draft."""
        if self._at != len(history.tokens) - len(step.tokens):
            return
        above: tuple[Token, ...] = ()
        for right in step.tokens:
            if above not in self._ranked:
                return
            for token, share in zip(*self._ranked[above], strict=True):
                self._calibration.add(share, token == right)
            above = (*above, right)
