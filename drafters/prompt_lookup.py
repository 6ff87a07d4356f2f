"""Drafter ``lookup``: copies the continuation of the last occurrence of the same words.

Sources: LLMA (arXiv 2304.04487), prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding). No weights: it
searches prompt and reply.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from slipstream.drafters.base import Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import MatchTrust, copy_probability
from slipstream.drafters.resources import Method
from slipstream.drafters.tree import chain_draft, lengthened
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

LONGEST: Final = 64  # tokens of a suffix; a longer one makes a draft no surer
_SIZES: Final = ((8, LONGEST), (4, 7), (3, 3), (2, 2))
"""Kept runs of tokens, and the longest match that has no longer run."""
_BEHIND: Final = 4  # least tokens that a draft's end must share with the text; shorter ones repeat by chance


class RepeatedText:
    """Finds the longest suffix of a text that occurred earlier in it, and the latest place where it did.

    Runs of 8, 4, 3 and 2 tokens are kept with the places where they ended, and the longest one that occurred before is
    compared with the text before these: pairs alone would have thousands of places in a long text.
    """

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens: list[Token] = []
        self._ends: dict[tuple[Token, ...], list[int]] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            self.tokens.append(token)
            for size, _ in _SIZES:
                self._ends.setdefault(tuple(self.tokens[-size:]), []).append(len(self.tokens) - 1)

    def cut(self, length: int) -> None:
        while len(self.tokens) > length:
            for size, _ in _SIZES:
                self._ends[tuple(self.tokens[-size:])].pop()
            self.tokens.pop()

    def match(self, ahead: Sequence[Token] = ()) -> tuple[int, int]:
        """Length of the longest suffix that occurred before, and the index where its latest earlier occurrence ends.

        (0, -1) if there is none of two tokens. Occurrences may overlap. A suffix longer than ``LONGEST`` counts as one
        of that length.

        Args:
            ahead: Tokens that follow the text, and count as its end; occurrences are in the text alone.
        """
        whole, last = [*self.tokens[-LONGEST:], *ahead][-LONGEST:], len(self.tokens) - (not ahead)
        for size, most in _SIZES:
            longest, at = 0, -1
            for end in reversed(self._ends.get(tuple(whole[-size:]), ()) if len(whole) >= size else ()):
                length, limit = size if end < last else 0, min(most, len(whole), end + 1)
                while 0 < length < limit and self.tokens[end - length] == whole[-1 - length]:
                    length += 1
                if length > longest:
                    longest, at = length, end
                if length == most:
                    break
            if longest:
                return longest, at
        return 0, -1

    def continuation(self, end: int, count: int, ahead: Sequence[Token] = ()) -> list[Token]:
        """Copies ``count`` tokens after index ``end``; past the end of the text, it repeats the copied tokens.

        So periodic text is continued with its period.

        Args:
            ahead: Tokens that follow the text, and count as its end.
        """
        size, start = len(self.tokens), end + 1
        copied = [*self.tokens[start : start + count], *ahead[max(0, start - size) : max(0, start + count - size)]]
        while len(copied) < count:
            copied.append(copied[len(copied) - (size + len(ahead) - start)])
        return copied


class PromptLookup(Drafter):
    """Drafts the continuation of the most recent earlier occurrence of the longest repeated suffix.

    A match of m tokens drafts at most m + 1, so that a short, doubtful match costs little.
    """

    name = "lookup"

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self.index = RepeatedText()
        self.acceptance = MatchTrust()  # of copies behind other drafts
        self._at = -1  # length of the history for which they were made
        # by the drafted tokens before a copy: the tokens that they share with the text, and those that follow there
        self._behind: dict[tuple[Token, ...], tuple[int, list[Token]]] = {}

    def begin(self, history: History) -> None:
        self._follow(history)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Copies a chain; drafts nothing if no suffix of enough tokens occurred before."""
        if len(self.index) != len(history.tokens):
            self._follow(history)
        matched, end = self.index.match()
        if not matched:
            return chain_draft((), (), self.name)
        probs: list[float] = []
        path = 1.0
        for depth in range(1, min(self._limit, matched + 1) + 1):
            prob = copy_probability(matched + depth - 1)
            path *= prob
            if not should_extend(path, depth):
                break
            probs.append(prob)
        return chain_draft(self.index.continuation(end, len(probs)), probs, self.name)

    def continued(self, history: History, draft: Draft, should_extend: ShouldExtend) -> Draft:
        """Copies on behind a draft's first path; the measured share of such copies that are right is its probability.

        A copy is measured even if it did not pay, and whatever the step evaluated.
        """
        size = len(history.tokens)
        if len(self.index) != size:
            self._follow(history)
        if self._at != size:
            self._at, self._behind = size, {}
        depth = draft.tree.first_path
        first = draft.tree.tokens[:depth]
        matched, end = self.index.match(first)
        if matched < _BEHIND or draft.tree.probes:
            return draft
        copied = self.index.continuation(end, min(self._limit, matched + 1), first)
        self._behind[first] = matched, copied
        path, probs = prod(draft.probs[:depth]), list[float]()
        for further in range(len(copied)):
            prob = self.acceptance.trust(matched + further)
            path *= prob
            if not should_extend(path, depth + further + 1):
                break
            probs.append(prob)
        return lengthened(draft, copied[: len(probs)], probs, self.name) if probs else draft

    def observe(self, history: History, step: Step) -> None:
        if self._at == len(history.tokens) - len(step.tokens):
            for first, (matched, copied) in self._behind.items():
                if step.tokens[: len(first)] == first:
                    for further, (guess, token) in enumerate(zip(copied, step.tokens[len(first) :], strict=False)):
                        self.acceptance.add(matched + further, 1.0, guess == token)
                        if guess != token:
                            break
            self._at = -1
        if len(self.index) + len(step.tokens) == len(history.tokens):
            self.index.extend(step.tokens)

    def rewind(self, length: int) -> None:
        self.index.cut(length)

    def close(self) -> None:
        self.index = RepeatedText()

    def _follow(self, history: History) -> None:
        """Makes the index cover exactly the history; extends it if its text is a prefix, else rebuilds it."""
        known = len(self.index)
        if self.index.tokens != history.tokens[:known]:
            self.index, known = RepeatedText(), 0
        self.index.extend(history.tokens[known:])


METHOD: Final = Method(
    PromptLookup.name, lambda _: PromptLookup(), about="copies what followed the same words earlier in the chat"
)
