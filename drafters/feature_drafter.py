"""What EAGLE-3 and MTP share: a head that pairs each token with the target's feature of the place before it.

Driven as llama.cpp's ``common/speculative.cpp`` drives both: the true pairs of the text stay in the head's cache, and a
draft goes on from them with the features that the head itself makes, whose pairs are dropped again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.drafters.tree import chain_draft
from slipstream.models.runtime.features import FeatureContext, Guess
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.sampling import Sampler
from slipstream.models.types import Floats, History, Token, shared_prefix

_HELD: Final = 32
"""Features that wait for their pass while another method drafts."""


class FeatureDrafter(Drafter):
    """Drafts with a head on the target's hidden states.

    The pair of place P is the token at P + 1 and the feature of P, from which follows the token at P + 2. The last
    feature of a text waits for the token that the target draws next. Features are heard once, with the pass that
    evaluates their token: where the target reuses a part of a prompt that this drafter has not heard, or has dropped,
    the pairs of that part are missing, and the head drafts from those that it has.
    """

    def __init__(self, head: FeatureContext, target: LlamaTarget, points: Sequence[int], sure: float = 0.3) -> None:
        """Takes over a head.

        Args:
            head: Nobody else may use it.
            target: What it drafts for.
            points: The hidden points that are joined to a feature, in this order.
            sure: Least probability of a drafted token.
        """
        self._head, self._target, self._points, self._sure = head, target, tuple(points), sure
        self.needs = Needs(frozenset(points))  # type: ignore[misc]  # of the head, not of the class
        self._n_ctx = target.abilities.n_ctx
        self._deepest = target.abilities.max_rows - 1
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
        """Drafts a chain, until a token is not worth it or the head is unsure of it."""
        last = len(history.tokens) - 2
        if not self._waiting or self._waiting[-1] != last or not worth(1.0, 1):
            return NO_DRAFT
        self._text += history.tokens[len(self._text) :]
        guess = self._settle(len(self._waiting), answer=True)
        true_pairs = self._head.length
        room = min(self._deepest, self._n_ctx - len(history.tokens))
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        while guess is not None and len(tokens) < room:
            (token, *_), (prob, *_) = sampler.rank(guess.logits[-1], history, tokens)
            path *= prob
            if prob < self._sure or not worth(path, len(tokens) + 1):
                break
            tokens.append(token)
            probs.append(prob)
            if len(tokens) == room or not worth(path, len(tokens) + 1):
                break  # the next one could not be more probable: a pass is saved
            guess = self._head.append([token], guess.features[-1:], answer=True)
        self._head.rewind(true_pairs)
        return chain_draft(tokens, probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        """Hears the features of the accepted path; those of the other rows are of another text."""
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
        guess = self._head.append([self._text[place + 1] for place in places], features, answer=answer)
        self._places += places
        del self._waiting[:count], self._heard[:count]
        return guess
