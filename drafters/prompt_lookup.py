"""Drafter ``lookup``: copies what followed the last time the same words stood here.

Sources: LLMA (arXiv 2304.04487), prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding), SAM-Decoding
(arXiv 2411.10666). No weights: the index is a suffix automaton over prompt and reply.
"""

from __future__ import annotations

import math
from typing import ClassVar

from slipstream.drafters.base import Draft, Drafter, Step, Worth
from slipstream.drafters.parts import Method
from slipstream.drafters.suffix_automaton import SuffixAutomaton
from slipstream.drafters.tree import chain_draft
from slipstream.models.sampling import Sampler
from slipstream.models.types import History


def copy_probability(matched: int) -> float:
    """Guesses how probable the next token of a copy is after ``matched`` equal tokens.

    A prior, to be corrected by what is accepted: 0.45 at 2 and 0.95 at 16, straight in the logarithm between, level
    above. A copied token lengthens the match by one, so the further tokens of a draft are the more probable.
    """
    return min(0.95, 0.45 + (math.log2(max(matched, 1)) - 1) / 6)


class PromptLookup(Drafter):
    """Drafts the continuation of the most recent earlier occurrence of the longest repeated suffix.

    A match of m tokens drafts at most m + 1, so that a short, doubtful match costs little; ``worth`` may cut it.
    """

    name: ClassVar[str] = "lookup"

    def __init__(self, min_match: int = 2, limit: int = 16) -> None:
        """Sets how careful it is.

        Args:
            min_match: Fewest equal tokens before it drafts.
            limit: Most tokens of a draft.
        """
        self._min_match = max(1, min_match)
        self._limit = limit
        self._index = SuffixAutomaton()
        self._cut = False  # whether the history lost an end that is still indexed

    def begin(self, history: History) -> None:
        """Indexes the prompt; what is indexed already, as at the next turn of a chat, stays."""
        self._follow(history)

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Copies a chain, or drafts nothing where no suffix of enough tokens occurred before."""
        if self._cut or len(self._index) != len(history.tokens):
            self._follow(history)
        matched, end = self._index.match
        if matched < self._min_match:
            return chain_draft((), (), self.name)
        probs: list[float] = []
        path = 1.0
        for depth in range(1, min(self._limit, matched + 1) + 1):
            prob = copy_probability(matched + depth - 1)
            path *= prob
            if not worth(path, depth):
                break
            probs.append(prob)
        return chain_draft(self._index.continuation(end, len(probs)), probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        """Indexes the step's tokens."""
        if not self._cut and len(self._index) + len(step.tokens) == len(history.tokens):
            self._index.extend(step.tokens)

    def rewind(self, length: int) -> None:
        """Notes that text was cut; the next draft or prompt indexes anew, unless the same text comes back."""
        self._cut = self._cut or length < len(self._index)

    def close(self) -> None:
        """Frees the index."""
        self._index = SuffixAutomaton()

    def _follow(self, history: History) -> None:
        """Makes the index hold exactly the history, reusing what it holds where that is a prefix."""
        known = len(self._index)
        if self._index.tokens != history.tokens[:known]:
            self._index, known = SuffixAutomaton(), 0
        self._index.extend(history.tokens[known:])
        self._cut = False


METHOD = Method(
    PromptLookup.name, lambda _: PromptLookup(), about="copies what followed the same words earlier in the chat"
)
