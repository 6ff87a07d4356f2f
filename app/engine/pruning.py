"""How much of a draft pays: the nodes that bring more tokens than their time would bring otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.types import ROOT, TokenTree


class Terms(NamedTuple):
    """What tokens and time are worth in this step.

    The rate of the whole reply is what is maximised: a node pays if it brings more tokens than its time brings at the
    best rate that is reached on this text. The rate of the single step would make rich steps stingy. (For the maximum
    of a ratio of sums see Dinkelbach, Management Science 13 (7), 1967.)

    Attributes:
        rate: Tokens a millisecond at the best.
        token: What a token is worth: 1 less what drawing it takes.
        rows: Milliseconds of a pass of n rows, at index n.
    """

    rate: float
    token: float
    rows: Sequence[float]

    def value(self, tokens: float, rows: float, milliseconds: float = 0.0, slower: float = 1.0) -> float:
        """Tokens, less what the pass and the given milliseconds would bring otherwise."""
        low = int(rows)
        cost = self.rows[low]
        if low < rows:
            cost += (rows - low) * (self.rows[low + 1] - cost)
        return tokens * self.token - self.rate * (cost * slower + milliseconds)


class Part(NamedTuple):
    """The part of a draft that pays.

    Attributes:
        draft: The draft, or what is left of it.
        tokens: Tokens that the step is expected to bring.
        value: See ``Terms.value``; the drafting is over and left out.
    """

    draft: Draft
    tokens: float
    value: float


def best_part(draft: Draft, probs: Sequence[float], terms: Terms, slower: float = 1.0, trust: float = 1.0) -> Part:
    """Grows a draft anew, node by node, the most probable path first, and keeps the size that is worth most.

    Every size is looked at, none included: the first rows may cost more than those that follow. A draft with probes
    stays whole, for what they bring comes later.

    Args:
        draft: The draft.
        probs: Per node, its corrected probability given its parent.
        terms: What tokens and time are worth.
        slower: How many times longer a pass takes for this drafter.
        trust: Share of what it promises that came true.
    """
    tree = draft.tree
    paths = list(probs)
    for node, parent in enumerate(tree.parents):
        paths[node] *= trust if parent == ROOT else paths[parent]
    if tree.probes:
        tokens = 1 + sum(path for node, path in enumerate(paths) if node not in tree.probes)
        return Part(draft, tokens, terms.value(tokens, 1 + len(tree), 0.0, slower))
    order = range(len(tree)) if tree.leaves == 1 else sorted(range(len(tree)), key=lambda node: -paths[node])
    rate, token, rows = terms.rate * slower, terms.token, terms.rows
    tokens, size, most, value = 1.0, 0, 1.0, token - rate * rows[1]
    for count, node in enumerate(order, start=2):
        tokens += paths[node]
        gain = tokens * token - rate * rows[count]
        if gain > value:
            size, most, value = count - 1, tokens, gain
    return Part(draft if size == len(tree) else _first(draft, order[:size]), most, value)


def _first(draft: Draft, nodes: Sequence[int]) -> Draft:
    """The draft of some nodes, parents before their children."""
    tree, size = draft.tree, len(nodes)
    if not nodes:
        return NO_DRAFT
    if tree.leaves == 1:
        return Draft(TokenTree.chain(tree.tokens[:size]), draft.probs[:size], draft.sources[:size])
    builder, handles = TreeBuilder(), {ROOT: ROOT}
    for node in nodes:
        parent = handles[tree.parents[node]]
        handles[node] = builder.add(parent, tree.tokens[node], draft.probs[node], draft.sources[node])
    return builder.build()
