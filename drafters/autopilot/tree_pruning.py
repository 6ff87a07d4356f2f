"""Chooses the nodes of a draft that are worth verifying: those whose expected gain exceeds their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.drafters.base import Draft
from slipstream.drafters.tree import some_of
from slipstream.models.types import ROOT


class Objective(NamedTuple):
    """The value of tokens and time in this step.

    The autopilot maximises the rate of the whole reply: a node pays if its expected tokens exceed those that the same
    time yields at ``rate``. Using the step's own rate would draft too little on easy steps. (For the maximum of a ratio
    of sums see Dinkelbach, Management Science 13 (7), 1967.)

    Attributes:
        rate: Tokens per millisecond: the recent rate, but at least that of plain decoding.
        token: Value of a token: 1 less the cost of sampling it.
        rows: Milliseconds of a pass of n rows, at index n.
    """

    rate: float
    token: float
    rows: Sequence[float]

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
    """The part of a draft that is worth verifying.

    Attributes:
        tokens: Tokens expected of the step.
        value: See ``Objective.value``; it does not count the time already spent on drafting.
    """

    draft: Draft
    tokens: float
    value: float


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
        return Candidate(draft, tokens, objective.value(tokens, 1 + len(tree), 0.0, slower))
    order = range(len(tree)) if tree.leaves == 1 else sorted(range(len(tree)), key=lambda node: -paths[node])
    rate, token, rows = objective.rate * slower, objective.token, objective.rows
    tokens, size, most, value = 1.0, 0, 1.0, token - rate * rows[1]
    for count, node in enumerate(order, start=2):
        tokens += paths[node]
        gain = tokens * token - rate * rows[count]
        if gain > value:
            size, most, value = count - 1, tokens, gain
    return Candidate(draft if size == len(tree) else some_of(draft, order[:size]), most, value)
