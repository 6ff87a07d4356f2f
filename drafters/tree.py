"""Builds drafts: grows a tree best first, and puts its nodes in depth-first order."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from slipstream.drafters.base import NO_DRAFT, Draft, ShouldExtend
from slipstream.models.types import ROOT, Token, TokenTree

Children = Iterable[tuple[Token, float]]
"""The possible children of a node, the most probable first: (token, probability given the node)."""


def chain_draft(tokens: Sequence[Token], probs: Sequence[float], source: str) -> Draft:
    """Builds the draft of one path, each token with its probability given those before."""
    if not tokens:
        return NO_DRAFT
    return Draft(TokenTree.chain(tokens), tuple(probs), (source,) * len(tokens))


class Grown(NamedTuple):
    """A node that ``TreeBuilder.grow`` has added."""

    handle: int
    tokens: tuple[Token, ...]  # the tokens of the path that ends in it, its own last
    path: float  # the probability of that path


TOP: Final = Grown(ROOT, (), 1.0)  # the last committed token, below which a tree grows


@dataclass(slots=True)
class _Node:
    parent: int
    token: Token
    prob: float
    source: str
    probe: bool
    children: list[int] = field(default_factory=list)


class TreeBuilder:
    """Collects nodes and builds a draft of them.

    Siblings with the same token are merged: the node has the children of both, and the probability and source of the
    more probable sibling (of the first one if both are equal). Probes are never merged.
    """

    def __init__(self) -> None:
        self.leaves = 1  # number of leaves so far; 1 for an empty tree
        self._nodes: list[_Node] = []
        self._top: list[int] = []
        self._offered = 0
        self._waiting: list[tuple[float, int, Token, float, Grown, Iterator[tuple[Token, float]]]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, parent: int, token: Token, prob: float, source: str, *, probe: bool = False) -> int:
        """Adds a node below a handle or ``ROOT``; returns its handle, or that of a sibling with the same token.

        A ``probe`` must never be accepted; all nodes below it are probes.
        """
        nodes = self._nodes
        siblings = self._top if parent == ROOT else nodes[parent].children
        probe = probe or (parent != ROOT and nodes[parent].probe)
        if siblings:
            if not probe:
                for handle in siblings:
                    node = nodes[handle]
                    if node.token == token and not node.probe:
                        if prob > node.prob:
                            node.prob, node.source = prob, source
                        return handle
            self.leaves += 1
        handle = len(nodes)
        siblings.append(handle)
        nodes.append(_Node(parent, token, prob, source, probe))
        return handle

    def add_path(self, tokens: Sequence[Token], probs: Sequence[float], source: str) -> tuple[int, ...]:
        """Adds a path, merged with existing nodes, and returns its handles."""
        parent, handles = ROOT, list[int]()
        for token, prob in zip(tokens, probs, strict=True):
            parent = self.add(parent, token, prob, source)
            handles.append(parent)
        return tuple(handles)

    def offer(self, parent: Grown, children: Children) -> None:
        """Offers the children of a node that ``grow`` has yielded, or of ``TOP``; they are read one by one."""
        rest = iter(children)
        for token, prob in rest:
            self._offered += 1  # ties go to the path that was offered first
            heappush(self._waiting, (-parent.path * prob, self._offered, token, prob, parent, rest))
            return

    def grow(self, should_extend: ShouldExtend, source: str, nodes: int, leaves: int) -> Iterator[Grown]:
        """Adds offered nodes, the most probable path first; yields each one so that its children can be offered.

        Best first is optimal for every number of nodes, since no child is more probable than its parent. If a child
        does not pay or would exceed ``leaves``, its remaining siblings, which are less probable, are dropped too. The
        generator ends when no offered node is left; call it again after further offers.

        Args:
            nodes: Maximum nodes of the whole tree.
            leaves: Maximum leaves of the whole tree; 1 for a chain.
        """
        waiting = self._waiting
        while waiting and len(self._nodes) < nodes:
            minus, _, token, prob, parent, siblings = heappop(waiting)
            handle, above, path = parent
            if not should_extend(-minus, len(above) + 1) or (
                self.leaves >= leaves and (self._top if handle == ROOT else self._nodes[handle].children)
            ):
                continue
            for following, its_prob in siblings:
                self._offered += 1
                heappush(waiting, (-path * its_prob, self._offered, following, its_prob, parent, siblings))
                break
            yield Grown(self.add(handle, token, prob, source), (*above, token), -minus)

    def layout(self) -> tuple[int, ...]:
        """The handles in the order of the tree's nodes: depth first, most probable child first, probes last."""
        order: list[int] = []
        open_nodes = self._ranked(self._top)
        while open_nodes:
            handle = open_nodes.pop()
            order.append(handle)
            children = self._nodes[handle].children
            if children:
                open_nodes += self._ranked(children)
        return tuple(order)

    def build(self) -> Draft:
        """Builds the draft; its node i has the handle ``layout()[i]``."""
        nodes = self._nodes
        if not nodes:
            return NO_DRAFT
        if self.leaves > 1 or nodes[-1].probe:
            order = self.layout()
            nodes = [nodes[handle] for handle in order]
            place = {handle: index for index, handle in enumerate(order)}
            place[ROOT] = ROOT
            tree = TokenTree(
                tuple([node.token for node in nodes]),
                tuple([place[node.parent] for node in nodes]),
                frozenset([index for index, node in enumerate(nodes) if node.probe]),
            )
        else:
            tree = TokenTree.chain([node.token for node in nodes])
        return Draft(tree, tuple([node.prob for node in nodes]), tuple([node.source for node in nodes]))

    def _ranked(self, siblings: list[int]) -> list[int]:
        """Sorts siblings for popping from the end: the best one is last, or the first added of equal ones."""
        if len(siblings) < 2:
            return siblings.copy()

        def rank(handle: int) -> tuple[bool, float, int]:
            return self._nodes[handle].probe, -self._nodes[handle].prob, handle

        return sorted(siblings, key=rank, reverse=True)


def some_of(draft: Draft, nodes: Sequence[int]) -> Draft:
    """Makes a draft of some nodes of a draft: no probes, and each parent before its children."""
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


def lengthened(draft: Draft, tokens: Sequence[Token], probs: Sequence[float], source: str) -> Draft:
    """Adds tokens to the end of a draft's first path: down from the root, always the first child."""
    tree, depth, more = draft.tree, draft.tree.first_path, len(tokens)
    probs = (*draft.probs[:depth], *probs, *draft.probs[depth:])
    sources = (*draft.sources[:depth], *((source,) * more), *draft.sources[depth:])
    joined = (*tree.tokens[:depth], *tokens, *tree.tokens[depth:])
    if depth == len(tree):
        return Draft(TokenTree.chain(joined), probs, sources)
    after = [parent + more if parent >= depth else parent for parent in tree.parents[depth:]]
    return Draft(TokenTree(joined, (*range(-1, depth + more - 1), *after)), probs, sources)
