"""What a drafter's probabilities really mean on this text, depth by depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slipstream.drafters.base import Draft
from slipstream.models.types import ROOT, Token, TokenTree

DEPTH: Final = 16
"""Depths that are told apart; deeper ones count as the last."""

_PRIOR: Final = 3.0  # tokens that count for the probabilities as they are
_DECAY: Final = 0.96  # an older outcome weighs so much less with each one after it
_LEAST, _MOST = 0.1, 2.0  # of a depth's correction
_SUREST: Final = 0.99


class Calibration:
    """How often what was drafted at each depth was right, against what its probabilities promised.

    A depth is heard where all above it was right, drafted or only guessed: below the first wrong token nothing was
    decided, and is neither right nor wrong (it is censored). So the correction of a depth is that of a probability
    given the path above, and a path's is the product.
    """

    def __init__(self) -> None:
        """Takes the probabilities as they are."""
        self._right = [_PRIOR] * DEPTH
        self._said = [_PRIOR] * DEPTH
        self._ratio = [1.0] * DEPTH  # of the two: the correction of a probability given the path above
        self.path = [1.0] * (DEPTH + 1)
        """Correction of the probability of a path by its depth; index 0 is the empty path."""

    def probs(self, draft: Draft) -> list[float]:
        """The corrected probability of each node of a draft given its parent."""
        ratio, last = self._ratio, DEPTH - 1
        if draft.tree.leaves == 1 and len(draft.probs) <= DEPTH:
            return [min(prob * each, _SUREST) for prob, each in zip(draft.probs, ratio, strict=False)]
        return [
            min(prob * ratio[min(depth - 1, last)], _SUREST)
            for prob, depth in zip(draft.probs, draft.tree.depths, strict=True)
        ]

    def hear(self, draft: Draft, tokens: Sequence[Token]) -> int:
        """Compares a guess, evaluated or not, with the target's own tokens, and says how deep it was right."""
        tree, node, depth, first = draft.tree, ROOT, 0, DEPTH
        for at, token in enumerate(tokens[:DEPTH]):
            said, child = 0.0, None
            for other in _below(tree, node):
                said += draft.probs[other]
                if tree.tokens[other] == token:
                    child = other
            if not said:
                break
            self._said[at] = _DECAY * self._said[at] + said
            self._right[at] = _DECAY * self._right[at] + (child is not None)
            self._ratio[at] = min(self._right[at] / self._said[at], _MOST)
            first = min(first, at)
            if child is None:
                break
            node, depth = child, at + 1
        if first < DEPTH:
            self._multiply(first, max(depth + 1, first + 1))
        return depth

    def _multiply(self, first: int, heard: int) -> None:
        """Brings the corrections of paths up to date, of which the depths up to ``heard`` have changed."""
        product = self.path[first]
        for at in range(first, DEPTH):
            product *= max(self._ratio[at], _LEAST)  # who is never heard stays wrong
            if at >= heard and product == self.path[at + 1]:
                return
            self.path[at + 1] = product


def _below(tree: TokenTree, node: int) -> list[int]:
    """The children of a node that may be accepted."""
    if tree.leaves == 1 and not tree.probes:
        return [node + 1] if node + 1 < len(tree) else []
    found: list[int] = []
    for other in range(node + 1, len(tree)):
        parent = tree.parents[other]
        if parent < node:
            break  # depth first: what hangs below the node has ended
        if parent == node and other not in tree.probes:
            found.append(other)
    return found
