"""Drafter ``retrieval``: what followed the last words in the owner's past chats and documents.

Source: REST (He et al., 2023, arXiv 2311.08252; github.com/FasterDecoding/REST): the longest suffix of the text, of 16
down to 2 tokens, is looked up in a datastore, its continuations become a trie with counts, and the most frequent nodes
a tree. Unlike REST's, the tree is verified by the one accept rule, which is exact at any temperature.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from heapq import heappop, heappush
from typing import ClassVar, Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Step, Worth
from slipstream.drafters.parts import Method, Parts
from slipstream.drafters.prompt_lookup import copy_probability
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.search import Found
from slipstream.drafters.text_index.suffix_array import DEPTH
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.errors import SlipstreamError
from slipstream.models.sampling import Sampler
from slipstream.models.types import ROOT, History, Token

Rows = list[tuple[Token, ...]]

_FADE: Final = 0.99  # an observation counts half after 69 more
_PRIOR: Final = 8.0  # observations that the prior is worth
_SUREST: Final = 0.98


class Acceptance:
    """How often the target went on as the index did, by the length of the match.

    Kept as what was found right against what the shares of the counts promised, so that what is left to learn is one
    factor a length; ``copy_probability`` is where it begins.
    """

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._promised = [0.0] * (DEPTH + 1)
        self._right = [0.0] * (DEPTH + 1)

    def trust(self, matched: int) -> float:
        """What a share counted behind a match of this length is worth as a probability, 0 to 0.98."""
        at = min(matched, DEPTH)
        right = self._right[at] + _PRIOR * copy_probability(at)
        return min(_SUREST, right / (self._promised[at] + _PRIOR))

    def hear(self, matched: int, share: float, right: bool) -> None:
        """Notes one token of the target.

        Args:
            matched: Length of the match before it.
            share: Sum of the shares of the tokens that were guessed.
            right: Whether it was one of them.
        """
        at = min(matched, DEPTH)
        self._promised[at] = _FADE * self._promised[at] + share
        self._right[at] = _FADE * self._right[at] + right


class Retrieval(Drafter):
    """Grows a tree from the continuations of the longest match, the most probable path first.

    A node's probability is the share of the continuations that take it, times what such shares have been worth behind
    matches of this length; a drafted token lengthens the match by one. The tree is judged against what the target
    then wrote, whoever drafted that step.

    A chain will do where the target takes no more; the index stays its owner's, who closes it.
    """

    name: ClassVar[str] = "retrieval"

    def __init__(self, index: TextIndex, leaves: int = 8, limit: int = 63, continuations: int = 64) -> None:
        """Sets how much it drafts.

        Args:
            index: Where it looks.
            leaves: Most leaves of a tree.
            limit: Most nodes of a tree (REST's 64 rows are 63 nodes and the last token).
            continuations: Most continuations that are counted; REST's 5,000 would take milliseconds here.
        """
        self._index = index
        self._leaves, self._limit, self._continuations = leaves, limit, continuations
        self._acceptance = Acceptance()
        self._guess = _Guess()

    def begin(self, history: History) -> None:
        """Looks whether the index has changed."""
        with suppress(SlipstreamError):  # what is open stays good, and whoever next changes the index hears the reason
            self._index.refresh()

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts a tree, or nothing where no match of two tokens is found."""
        self._guess = _Guess()
        if not worth(1.0, 1):
            return NO_DRAFT
        found = self._index.search(history.tokens[-DEPTH:], most=self._continuations)
        self._guess = _Guess(history.position, found.matched)
        return self._follow(found, worth) if len(found.ahead) == 1 else self._grow(found, worth)

    def observe(self, history: History, step: Step) -> None:
        """Compares the last guess with what the target wrote."""
        guess, self._guess = self._guess, _Guess()
        if guess.position != history.position - len(step.tokens):
            return
        node = ROOT
        for depth, token in enumerate(step.tokens):
            children = guess.children.get(node)
            if not children:
                return
            share = sum(share for _, share in children.values())
            self._acceptance.hear(guess.matched + depth, share, token in children)
            if token not in children:
                return
            node = children[token][0]

    def _follow(self, found: Found, worth: Worth) -> Draft:
        """Drafts what followed the only match: most often there is no other, and no tree to be grown."""
        tokens, probs, path, node = list[Token](), list[float](), 1.0, ROOT
        for depth, token in enumerate(reversed(found.ahead[0])):
            trust = self._acceptance.trust(found.matched + depth)
            path *= trust
            if token < 0 or depth == self._limit or not worth(path, depth + 1):
                break
            self._guess.children[node] = {token: (depth, 1.0)}
            tokens.append(token)
            probs.append(trust)
            node = depth
        return chain_draft(tokens, probs, self.name)

    def _grow(self, found: Found, worth: Worth) -> Draft:
        """Adds the node with the most probable path until none is worth it, or there is no room.

        Best first is optimal for every number of nodes, since no child is more probable than its parent. A sibling
        waits until the more probable one before it was taken.
        """
        builder, children = TreeBuilder(), self._guess.children
        waiting: list[tuple[float, int, int, _Branch]] = []
        order = leaves = 0

        def wait(branch: _Branch, rank: int) -> None:
            nonlocal order
            if rank < len(branch.counts):
                order += 1  # ties: first come, first served
                heappush(waiting, (-branch.path * branch.prob(rank), order, rank, branch))

        wait(_Branch(ROOT, 0, 1.0, list(found.ahead), self._acceptance.trust(found.matched)), 0)
        while waiting and len(builder) < self._limit:
            negative, _, rank, branch = heappop(waiting)
            depth = branch.depth + 1
            grows_leaf = rank > 0 or branch.node == ROOT
            if (grows_leaf and leaves == self._leaves) or not worth(-negative, depth):
                continue
            leaves += grows_leaf
            token, share = branch.token(rank), branch.share(rank)
            node = builder.add(branch.node, token, branch.prob(rank), self.name)
            children.setdefault(branch.node, {})[token] = (node, share)
            wait(branch, rank + 1)
            if depth < DEPTH:
                trust = self._acceptance.trust(found.matched + depth)
                wait(_Branch(node, depth, -negative, branch.below(token), trust), 0)
        return builder.build()


class _Guess:
    """The last draft, to be judged: node to children, token to (node, share)."""

    __slots__ = ("children", "matched", "position")

    def __init__(self, position: int = -1, matched: int = 0) -> None:
        self.position, self.matched = position, matched
        self.children: dict[int, dict[Token, tuple[int, float]]] = {}


class _Branch:
    """A node of the trie: the continuations that run through it, counted by their next token."""

    __slots__ = ("counts", "depth", "node", "path", "rows", "trust")

    def __init__(self, node: int, depth: int, path: float, rows: Rows, trust: float) -> None:
        self.node, self.depth, self.path, self.rows, self.trust = node, depth, path, rows, trust
        following = Counter([row[-1 - depth] for row in rows])
        following.pop(-1, None)  # pieces that ended here
        self.counts = following.most_common()

    def token(self, rank: int) -> Token:
        return self.counts[rank][0]

    def share(self, rank: int) -> float:
        return self.counts[rank][1] / len(self.rows)

    def prob(self, rank: int) -> float:
        return self.trust * self.share(rank)

    def below(self, token: Token) -> Rows:
        if self.counts[0][1] == len(self.rows):
            return self.rows
        return [row for row in self.rows if row[-1 - self.depth] == token]


def _lacks(parts: Parts) -> str:
    if parts.text_index is None or parts.text_index.empty:
        return "it needs indexed text, and there is none: slipstream drafters index FOLDER"
    return ""


def _make(parts: Parts) -> Drafter:
    assert parts.text_index is not None  # _lacks has said so
    abilities = parts.abilities
    return Retrieval(parts.text_index, min(8, abilities.max_leaves), min(63, abilities.max_rows - 1))


METHOD = Method(
    Retrieval.name, _make, Retrieval.needs, _lacks, "what followed the same words in your past chats and files"
)
