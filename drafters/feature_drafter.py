"""What EAGLE-3 and MTP share: a head that pairs each token with the target's feature of the place before it.

Driven as llama.cpp's ``common/speculative.cpp`` drives both: the true pairs of the text stay in the head's cache, and a
draft goes on from them with the features that the head itself makes, whose pairs are dropped again. Drafts are trees as
in EAGLE-2 (Li et al., arXiv 2406.16858): each level goes on below its most probable paths, in one pass, and the best of
all nodes are taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.drafters.rankings import Rankings
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.errors import SlipstreamError
from slipstream.models.runtime.features import FeatureContext, Guess
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.sampling import Sampler
from slipstream.models.types import ROOT, Floats, History, Token, shared_prefix

_HELD: Final = 32
"""Features that wait for their pass while another method drafts."""

_SIBLINGS: Final = 3  # tokens that are looked at below each node
_NODES: Final = 16


class _Found(NamedTuple):
    """A node that may be drafted; the least of a level is the best.

    Attributes:
        minus: Minus the probability of the path that ends in it.
        row: The row of the pass that guessed it.
        parent: The place of its parent in the list of all.
        tokens: The path's tokens.
        prob: Its probability given its parent.
    """

    minus: float
    row: int
    parent: int
    tokens: tuple[Token, ...]
    prob: float


class FeatureDrafter(Drafter):
    """Drafts with a head on the target's hidden states.

    The pair of place P is the token at P + 1 and the feature of P, from which follows the token at P + 2. The last
    feature of a text waits for the token that the target draws next. Features are heard once, with the pass that
    evaluates their token: where the target reuses a part of a prompt that this drafter has not heard, or has dropped,
    the pairs of that part are missing, and the head drafts from those that it has.
    """

    def __init__(self, head: FeatureContext, target: LlamaTarget, points: Sequence[int]) -> None:
        """Takes over a head.

        Args:
            head: Nobody else may use it.
            target: What it drafts for.
            points: The hidden points that are joined to a feature, in this order.
        """
        self._head, self._target, self._points = head, target, tuple(points)
        self.needs = Needs(frozenset(points))  # type: ignore[misc]  # of the head, not of the class
        self._n_ctx = target.abilities.n_ctx
        self._nodes, self._leaves = min(_NODES, target.abilities.max_rows - 1), head.leaves
        self._siblings = _SIBLINGS if self._leaves > 1 else 1
        self._rankings = Rankings()
        self._text: list[Token] = []
        self._places: list[int] = []  # of the pairs in the head's cache, ascending
        self._waiting: list[int] = []  # places of features that are not in the cache yet, ascending, after the others
        self._heard: list[Floats] = []  # their joined hidden states, [width] each

    def begin(self, history: History) -> None:
        """Starts a reply; what the prompt shares with the last text stays."""
        self.rewind(shared_prefix(self._text, history.tokens))
        self._text = list(history.tokens)

    def prefilled(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Reads the prompt with the target."""
        self._hear(self._target.cached - len(tokens), [hidden[point] for point in self._points])
        self._settle(len(self._waiting) - 1)

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Drafts a tree, or a chain where no more than one branch is worth it."""
        last = len(history.tokens) - 2
        if not self._waiting or self._waiting[-1] != last or not worth(1.0, 1):
            return NO_DRAFT
        self._text += history.tokens[len(self._text) :]
        guess = self._settle(len(self._waiting), answer=True)
        free = self._n_ctx - len(history.tokens)
        room, deepest = min(self._nodes, free), min(self._nodes, free // self._leaves)  # cells, for all branches
        if guess is None or not deepest:
            return NO_DRAFT
        self._rankings.begin(history)
        found = self._guesses(Guess(guess.logits[-1:], guess.features[-1:]), history, worth, sampler, deepest)
        self._head.rewind(self._head.length)
        return self._best(found, room)

    def observe(self, history: History, step: Step) -> None:
        """Hears the features of the accepted path; those of the other rows are of another text."""
        self._rankings.hear(history, step)
        first = len(history.tokens) - len(step.tokens) - 1
        self._text += history.tokens[len(self._text) :]
        rows = [0, *(node + 1 for node in step.path)]
        self._hear(first, [step.evaluation.hidden[point][rows] for point in self._points])
        if len(self._waiting) > _HELD:
            self._settle(len(self._waiting) - 1)

    def rewind(self, length: int) -> None:
        """Forgets what depends on tokens from ``length`` on."""
        del self._text[length:]
        self._drop(length - 1, length)

    def close(self) -> None:
        """Frees the head."""
        self._head.close()

    def _guesses(self, guess: Guess, history: History, worth: Worth, sampler: Sampler, deepest: int) -> list[_Found]:
        """Guesses level by level, the most probable paths of each going on in one pass; parents before children."""
        found: list[_Found] = []
        level = [_Found(-1.0, 0, ROOT, (), 1.0)]
        places = [ROOT]
        for depth in range(1, deepest + 1):
            fresh: list[_Found] = []
            for row, (place, node) in enumerate(zip(places, level, strict=True)):
                above = node.tokens
                ranked, shares = sampler.rank(guess.logits[row], history, above, self._siblings)
                for token, prob in self._rankings.look(above, ranked, shares):
                    path = -node.minus * prob
                    if worth(path, depth):
                        fresh.append(_Found(-path, row, place, (*above, token), prob))
            fresh.sort()
            level = list(takewhile(lambda node: worth(-node.minus, depth + 1), fresh[: self._leaves]))  # noqa: B023
            places = list(range(len(found), len(found) + len(level)))
            found += fresh
            if not level or depth == deepest:
                return found
            rows = [node.row for node in level]
            guess = self._head.grow(rows, [node.tokens[-1] for node in level], guess.features[rows])
        return found

    def _best(self, found: list[_Found], room: int) -> Draft:
        """The most probable nodes, as many as there is room for."""
        builder, handles = TreeBuilder(), {ROOT: ROOT}
        branched, leaves = set[int](), 1
        for place in sorted(range(len(found)), key=lambda each: (found[each].minus, each)):
            node = found[place]
            if len(builder) == room or node.parent not in handles:
                continue
            if node.parent in branched and leaves == self._leaves:
                continue
            leaves += node.parent in branched
            branched.add(node.parent)
            handles[place] = builder.add(handles[node.parent], node.tokens[-1], node.prob, self.name)
        return builder.build()

    def _features(self, joined: Floats) -> Floats:
        """What the head pairs with tokens, of the target's joined hidden states [places, joined width]."""
        return joined

    def _hear(self, first: int, hidden: Sequence[Floats]) -> None:
        """Takes the hidden states of the places from ``first`` on, which replace what was known of these."""
        self._drop(first, first)
        rows = np.concatenate(hidden, axis=1)
        self._waiting += range(first, first + len(rows))
        self._heard.extend(rows)

    def _drop(self, pairs: int, features: int) -> None:
        """Forgets pairs from place ``pairs`` on, and features that wait from place ``features`` on."""
        kept = bisect_left(self._places, pairs)
        if kept < len(self._places):
            del self._places[kept:]
            self._head.rewind(kept)
        kept = bisect_left(self._waiting, features)
        del self._waiting[kept:], self._heard[kept:]

    def _settle(self, count: int, *, answer: bool = False) -> Guess | None:
        """Reads the pairs of the first features that wait; says, if asked, what follows them."""
        if count < 1:
            return None
        places = self._waiting[:count]
        features = self._features(np.stack(self._heard[:count]))
        try:
            guess = self._head.append([self._text[place + 1] for place in places], features, answer=answer)
        except SlipstreamError:
            self._head.rewind(len(self._places))  # of several passes, the first ones may have gone well
            raise
        self._places += places
        del self._waiting[:count], self._heard[:count]
        return guess
