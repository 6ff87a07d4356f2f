"""Chooses the nodes of a draft that are worth verifying: those whose expected gain exceeds their cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft
from slipstream.drafters.tree import some_of
from slipstream.models.types import ROOT


class Objective(NamedTuple):
    """The value of tokens and time in this step.

    The autopilot maximises the rate of the whole reply: a node pays if its expected tokens exceed those that the same
    time yields at ``rate``. Using the step's own rate would draft too little on easy steps. (For the maximum of a ratio
    of sums see Dinkelbach, Management Science 13 (7), 1967.)
    """

    rate: float  # tokens per millisecond: the recent rate, but at least that of plain decoding
    token: float  # value of a token: 1 less the cost of sampling it
    rows: Sequence[float]  # milliseconds of a pass of n rows, at index n

    @property
    def plain(self) -> float:
        """The value of a plain step."""
        return self.token - self.rate * self.rows[1]

    def value(self, tokens: float, rows: float, milliseconds: float = 0.0, slower: float = 1.0) -> float:
        """A step's tokens, less those that ``rate`` yields in the time of its pass and in ``milliseconds``.

        Args:
            rows: Rows of its pass; for a fraction, the time is interpolated.
        """
        low = int(rows)
        cost = self.rows[low]
        if low < rows:
            cost += (rows - low) * (self.rows[low + 1] - cost)
        return tokens * self.token - self.rate * (cost * slower + milliseconds)


class Candidate(NamedTuple):
    """The part of a draft that is worth verifying."""

    draft: Draft
    tokens: float  # expected of the step
    value: float  # see ``Objective.value``; it does not count the time already spent on drafting
    whole: Draft = NO_DRAFT  # the draft before it was pruned
    order: Sequence[int] = ()  # its nodes, the most probable path first
    expected: Sequence[float] = (1.0,)  # tokens of a pass of n rows, at index n - 1

    def values(self, widths: Sequence[int], objective: Objective) -> dict[int, float]:
        """The value of a step for each width of its pass; a draft with probes is verified whole or not at all."""
        last, probed = len(self.expected), bool(self.whole.tree.probes)
        return {
            width: -inf
            if probed and width < last
            else self.expected[min(width, last) - 1] * objective.token - objective.rate * objective.rows[width]
            for width in widths
        }

    def fitted(self, rows: int) -> Candidate:
        """The most nodes that fit a pass of ``rows`` rows, which is padded otherwise."""
        size = min(rows, len(self.expected)) - 1
        if size == len(self.order):
            return self._replace(draft=self.whole, tokens=self.expected[size])
        if self.whole.tree.probes:  # only whole; see ``values``
            return self._replace(draft=NO_DRAFT, tokens=1.0)
        return self._replace(draft=some_of(self.whole, self.order[:size]), tokens=self.expected[size])


def prune(
    draft: Draft, probs: Sequence[float], objective: Objective, slower: float = 1.0, trust: float = 1.0
) -> Candidate:
    """Adds the nodes one by one, the most probable path first, and keeps the number of nodes of highest value.

    Every number is compared, including 0, since the first rows may cost more than later ones. A draft with probes stays
    whole, because probes pay off in later steps.

    Args:
        probs: Per node, its corrected probability given its parent.
        trust: Factor on the expected tokens; see ``Arm.trust``.
    """
    tree = draft.tree
    paths = list(probs)
    for node, parent in enumerate(tree.parents):
        paths[node] *= trust if parent == ROOT else paths[parent]
    if tree.probes:
        tokens = 1 + sum(path for node, path in enumerate(paths) if node not in tree.probes)
        value = objective.value(tokens, 1 + len(tree), 0.0, slower)
        return Candidate(draft, tokens, value, draft, order=range(len(tree)), expected=[tokens] * (1 + len(tree)))
    order = range(len(tree)) if tree.leaves == 1 else sorted(range(len(tree)), key=lambda node: -paths[node])
    rate, token, rows = objective.rate * slower, objective.token, objective.rows
    tokens, size, most, value = 1.0, 0, 1.0, token - rate * rows[1]
    expected = [tokens]
    for count, node in enumerate(order, start=2):
        tokens += paths[node]
        expected.append(tokens)
        gain = tokens * token - rate * rows[count]
        if gain > value:
            size, most, value = count - 1, tokens, gain
    part = draft if size == len(tree) else some_of(draft, order[:size])
    return Candidate(part, most, value, draft, order=order, expected=expected)
