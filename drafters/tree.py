"""Builds drafts: nodes in any order in, a tree in the one valid layout out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.drafters.base import NO_DRAFT, Draft
from slipstream.models.types import ROOT, Token, TokenTree


def chain_draft(tokens: Sequence[Token], probs: Sequence[float], source: str) -> Draft:
    """Builds the draft of one path.

    Args:
        tokens: The path, from below the last committed token.
        probs: Per token, the drafter's probability of it given those before.
        source: The drafter's name.
    """
    if not tokens:
        return NO_DRAFT
    return Draft(TokenTree.chain(tokens), tuple(probs), (source,) * len(tokens))


@dataclass(slots=True)
class _Node:
    token: Token
    prob: float
    source: str
    probe: bool
    children: list[int] = field(default_factory=list)


class TreeBuilder:
    """Collects nodes and lays them out.

    Siblings that carry the same token become one: the more probable, of equals the first, names the source and the
    probability; the children of both hang below it. Probes are never merged.
    """

    def __init__(self) -> None:
        """Starts with the root alone."""
        self._nodes: list[_Node] = []
        self._top: list[int] = []

    def __len__(self) -> int:
        """Number of nodes so far."""
        return len(self._nodes)

    def add(self, parent: int, token: Token, prob: float, source: str, *, probe: bool = False) -> int:
        """Adds a node below ``parent`` (a handle, or ``ROOT``).

        Args:
            parent: What an earlier call returned, or ``ROOT``.
            token: The guessed token.
            prob: The drafter's probability of it given its parent.
            source: The drafter's name.
            probe: Whether it must never be accepted; below a probe everything is a probe.

        Returns:
            The node's handle: that of the sibling with the same token where there is one.
        """
        siblings = self._children(parent)
        probe = probe or (parent != ROOT and self._nodes[parent].probe)
        if not probe:
            for handle in siblings:
                node = self._nodes[handle]
                if node.token == token and not node.probe:
                    if prob > node.prob:
                        node.prob, node.source = prob, source
                    return handle
        siblings.append(len(self._nodes))
        self._nodes.append(_Node(token, prob, source, probe))
        return len(self._nodes) - 1

    def add_path(
        self, tokens: Sequence[Token], probs: Sequence[float], source: str, parent: int = ROOT
    ) -> tuple[int, ...]:
        """Adds a path below ``parent``, merged with what is there, and returns its handles."""
        handles: list[int] = []
        for token, prob in zip(tokens, probs, strict=True):
            parent = self.add(parent, token, prob, source)
            handles.append(parent)
        return tuple(handles)

    def layout(self) -> tuple[int, ...]:
        """The handles in the order of the tree's nodes: depth first, most probable child first, probes last."""
        order: list[int] = []
        open_nodes = self._ranked(ROOT)
        while open_nodes:
            handle = open_nodes.pop()
            order.append(handle)
            open_nodes += self._ranked(handle)
        return tuple(order)

    def build(self) -> Draft:
        """Lays out the tree; node i of it is the handle ``layout()[i]``."""
        if not self._nodes:
            return NO_DRAFT
        order = self.layout()
        place = {handle: index for index, handle in enumerate(order)}
        parents = [ROOT] * len(order)
        for handle in order:
            for child in self._nodes[handle].children:
                parents[place[child]] = place[handle]
        nodes = [self._nodes[handle] for handle in order]
        tree = TokenTree(
            tuple(node.token for node in nodes),
            tuple(parents),
            frozenset(index for index, node in enumerate(nodes) if node.probe),
        )
        return Draft(tree, tuple(node.prob for node in nodes), tuple(node.source for node in nodes))

    def _children(self, handle: int) -> list[int]:
        return self._top if handle == ROOT else self._nodes[handle].children

    def _ranked(self, parent: int) -> list[int]:
        """Children, the one that comes first at the end; ties keep the order in which they were added."""

        def rank(handle: int) -> tuple[bool, float, int]:
            return self._nodes[handle].probe, -self._nodes[handle].prob, handle

        return sorted(self._children(parent), key=rank, reverse=True)
