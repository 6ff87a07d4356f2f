"""A queue of the target's features for the cache of a drafting head."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from slipstream.drafters.base import Step
from slipstream.models.errors import SlipstreamError
from slipstream.models.types import Floats, History, Token

Result = TypeVar("Result")
HELD: Final = 32  # features that may wait for a pass while another method drafts


class FeatureQueue:
    """The positions whose features a head has read, and those whose features wait for its next pass.

    A token's features come only with the pass that evaluates the token. If the target reuses a part of a prompt whose
    features were dropped, the positions of that part are missing, and the head drafts from the others.
    """

    def __init__(self, points: Sequence[int], rewind: Callable[[int], None]) -> None:
        """Takes the hidden points that a feature consists of, in order; ``rewind`` cuts the head's cache."""
        self.read: list[int] = []  # positions whose features are in the head's cache, ascending
        self.waiting: list[int] = []  # later positions, ascending, whose features are not in the cache yet
        self.text: list[Token] = []
        self._points, self._rewind = tuple(points), rewind
        self._features: list[Floats] = []  # features of the waiting positions, [joined width] each

    @property
    def known(self) -> int:
        """The position after the last one whose features it has."""
        return 1 + (self.waiting or self.read or [-1])[-1]

    def take(self, first: int, hidden: Mapping[int, Floats], rows: Sequence[int] | None = None) -> None:
        """Stores the features of the positions from ``first`` on, and drops all that were stored from there on."""
        self.drop(first, first)
        joined = [hidden[point] if rows is None else hidden[point][rows] for point in self._points]
        features = np.concatenate(joined, axis=1)
        self.waiting += range(first, first + len(features))
        self._features.extend(features)

    def take_accepted(self, history: History, step: Step) -> None:
        """Stores the features of a step's accepted path; the other rows belong to rejected texts."""
        self.text += history.tokens[len(self.text) :]
        first = len(history.tokens) - len(step.tokens) - 1
        self.take(first, step.evaluation.hidden, [0, *(node + 1 for node in step.path)])

    def drop(self, read: int, waiting: int) -> None:
        """Drops the read features from position ``read`` on, and the waiting ones from position ``waiting`` on."""
        kept = bisect_left(self.read, read)
        if kept < len(self.read):
            del self.read[kept:]
            self._rewind(kept)
        kept = bisect_left(self.waiting, waiting)
        del self.waiting[kept:], self._features[kept:]

    def settle(self, count: int, read: Callable[[Sequence[int], Floats], Result]) -> Result | None:
        """Lets ``read`` put the first ``count`` waiting features into the head's cache; if it fails, they stay here."""
        if count < 1:
            return None
        positions = self.waiting[:count]
        try:
            result = read(positions, np.stack(self._features[:count]))
        except SlipstreamError:
            self._rewind(len(self.read))  # undoes the passes that succeeded, if there were several
            raise
        self.read += positions
        del self.waiting[:count], self._features[:count]
        return result
