"""Corrects a drafter's probabilities by what the target really drew."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

_BOUNDS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_WEIGHT: Final = 8.0  # outcomes that the probability itself counts for
_DECAY: Final = 0.99  # an older outcome weighs so much less with each one after it


class Confidence:
    """Live calibration: of the latest tokens of about this probability, how many did the target draw?

    Transformers adapts one threshold for the probability at which it stops (``assistant_confidence_threshold``); here
    the probability itself is corrected, and whoever asks decides what it is worth. An outcome counts wherever the
    target's own token is known, drafted or not: what a draft stopped before is measured too, and what lies below the
    first rejection was never decided and is not counted as wrong.
    """

    def __init__(self) -> None:
        """Believes the probabilities as they are."""
        self._tries = [0.0] * (len(_BOUNDS) + 1)
        self._right = [0.0] * (len(_BOUNDS) + 1)

    def corrected(self, prob: float) -> float:
        """How often a token of this probability is right, 0 to 1."""
        bucket = bisect_right(_BOUNDS, prob)
        return (self._right[bucket] + _WEIGHT * prob) / (self._tries[bucket] + _WEIGHT)

    def hear(self, prob: float, right: bool) -> None:
        """Takes whether a token of this probability was the target's."""
        bucket = bisect_right(_BOUNDS, prob)
        self._tries[bucket] = _DECAY * self._tries[bucket] + 1
        self._right[bucket] = _DECAY * self._right[bucket] + right
