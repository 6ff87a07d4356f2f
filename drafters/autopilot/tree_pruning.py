"""Chooses the nodes of a draft that are worth verifying: those whose expected gain exceeds their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.drafters.base import Draft
from slipstream.drafters.tree import some_of
from slipstream.models.types import ROOT


class Objective(NamedTuple):
    """What tokens and time are worth in this step.

    The rate of the whole reply is maximised: a node pays if it brings more tokens than its time brings at the best rate
    reached on this text. Using the step's own rate would draft too little on easy steps. (For the maximum of a ratio of
    sums see Dinkelbach, Management Science 13 (7), 1967.)

    Attributes:
        rate: Tokens a millisecond, at least those of plain decoding.
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
        """Tokens, less those that the best rate would bring in the time of the pass and in ``milliseconds``.

        Args:
            tokens: Expected of the step.
            rows: Of its pass; a fraction is interpolated.
            milliseconds: Spent outside of the pass.
            slower: Factor of the pass.
        """
        low = int(rows)
        cost = self.rows[low]
        if low < rows:
            cost += (rows - low) * (self.rows[low + 1] - cost)
        return tokens * self.token - self.rate * (cost * slower + milliseconds)


class Candidate(NamedTuple):
    """The part of a draft that is worth verifying.

    Attributes:
        draft: The draft, pruned.
        tokens: Tokens expected of the step.
        value: See ``Objective.value``; time already spent on drafting is left out.
    """

    draft: Draft
    tokens: float
    value: float


def prune(
    draft: Draft, probs: Sequence[float], objective: Objective, slower: float = 1.0, trust: float = 1.0
) -> Candidate:
    """Adds the nodes one by one, the most probable path first, and keeps the size of most value.

    Every size is a candidate, zero included: the first rows may cost more than those that follow. A draft with probes
    stays whole, because probes pay off in later steps.

    Args:
        draft: The draft.
        probs: Per node, its corrected probability given its parent.
        objective: What tokens and time are worth.
        slower: Factor of the pass for this drafter.
        trust: Share of the expected tokens that came in the past.
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
