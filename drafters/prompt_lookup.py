"""Drafter ``lookup``: copies the continuation of the last occurrence of the same words.

Sources: LLMA (arXiv 2304.04487), prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding), SAM-Decoding
(arXiv 2411.10666). No weights: the index is a suffix automaton over prompt and reply.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from slipstream.drafters.base import Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.calibration import MatchTrust, copy_probability
from slipstream.drafters.resources import Method
from slipstream.drafters.tree import chain_draft, lengthened
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

_NO_STATE: Final = -1
_FRESHENED: Final = 32  # suffixes whose latest end is updated per token
_BEHIND: Final = 4  # least tokens that a draft's end must share with the text; shorter ones repeat by chance


class SuffixAutomaton:
    """Finds the longest suffix of a text that occurred earlier in it, with amortised constant work per token.

    The classic construction (Blumer et al., 1985) with end positions, as SAM-Decoding (arXiv 2411.10666) uses it, but
    with the *latest* end of every state instead of the first. The suffix link of the whole text points to the state of
    the longest suffix that occurred before, so no separate matching is needed.

    Exact latest ends would need a write per token for each of its distinct suffixes, which is quadratic in text like
    "aaaa". So only the 32 longest suffixes are updated. The end in ``match`` is always a true occurrence; it is the
    most recent one unless the matched text was more than 32 suffix links deep when it last occurred.
    """

    __slots__ = ("_last", "_latest_end", "_length", "_link", "_match", "_more", "_only_target", "_only_token", "tokens")

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens: list[Token] = []
        # Most states have one edge, stored in two arrays; only branching states need a dict.
        self._length, self._link = array("i", [0]), array("i", [_NO_STATE])
        self._latest_end = array("i", [-1])
        self._only_token, self._only_target = array("q", [0]), array("i", [_NO_STATE])
        self._more: dict[int, dict[Token, int]] = {0: {}}
        self._last = 0
        self._match = (0, -1)
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def match(self) -> tuple[int, int]:
        """Length of the longest suffix that occurred before, and the index where an earlier occurrence of it ends.

        (0, -1) if the last token is new. Occurrences may overlap.
        """
        return self._match

    def extend(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            self._append(token)

    def match_after(self, ahead: Sequence[Token]) -> tuple[int, int]:
        """``match`` as it would be after further tokens, which are not added."""
        state, matched = self._last, len(self.tokens)
        for token in ahead:
            while state != _NO_STATE and (target := self._target(state, token)) == _NO_STATE:
                state = self._link[state]
                matched = self._length[state] if state != _NO_STATE else 0
            state, matched = (0, 0) if state == _NO_STATE else (target, matched + 1)
        return (matched, self._latest_end[state]) if matched else (0, -1)

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

    def _append(self, token: Token) -> None:
        end = len(self.tokens)
        self.tokens.append(token)
        length, link, latest_end = self._length, self._link, self._latest_end
        current = self._new_state(end + 1, end)
        state, target = self._last, _NO_STATE
        while state != _NO_STATE:
            target = self._target(state, token)
            if target != _NO_STATE:
                break
            self._set_target(state, token, current)
            state = link[state]
        if state == _NO_STATE:
            link[current] = 0
        elif length[target] == length[state] + 1:
            link[current] = target
        else:
            link[current] = self._split(state, token, target)
        self._last = current
        repeated = link[current]
        self._match = (length[repeated], latest_end[repeated])
        for _ in range(_FRESHENED):
            if repeated <= 0:
                return
            latest_end[repeated] = end
            repeated = link[repeated]

    def _split(self, state: int, token: Token, target: int) -> int:
        """Clones ``target`` for those of its suffixes that also end here."""
        clone = self._new_state(self._length[state] + 1, self._latest_end[target])
        self._link[clone] = self._link[target]
        self._only_token[clone], self._only_target[clone] = self._only_token[target], self._only_target[target]
        if target in self._more:
            self._more[clone] = dict(self._more[target])
        self._link[target] = clone
        while state != _NO_STATE and self._target(state, token) == target:
            self._set_target(state, token, clone)
            state = self._link[state]
        return clone

    def _new_state(self, length: int, end: int) -> int:
        self._length.append(length)
        self._link.append(_NO_STATE)
        self._latest_end.append(end)
        self._only_token.append(0)
        self._only_target.append(_NO_STATE)
        return len(self._length) - 1

    def _target(self, state: int, token: Token) -> int:
        if self._only_target[state] != _NO_STATE and self._only_token[state] == token:
            return self._only_target[state]
        more = self._more.get(state)
        return _NO_STATE if more is None else more.get(token, _NO_STATE)

    def _set_target(self, state: int, token: Token, target: int) -> None:
        if self._only_target[state] == _NO_STATE or self._only_token[state] == token:
            self._only_token[state], self._only_target[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target


class PromptLookup(Drafter):
    """Drafts the continuation of the most recent earlier occurrence of the longest repeated suffix.

    A match of m tokens drafts at most m + 1, so that a short, doubtful match costs little.
    """

    name = "lookup"

    def __init__(self, min_match: int = 2, limit: int = 16) -> None:
        """Creates an empty index."""
        self._min_match = max(1, min_match)
        self._limit = limit
        self.index = SuffixAutomaton()
        self._cut = False  # whether the end of the history was cut, but is still in the index
        self.acceptance = MatchTrust()  # of copies behind other drafts
        self._at = -1  # length of the history for which they were made
        # by the drafted tokens before a copy: the tokens that they share with the text, and those that follow there
        self._behind: dict[tuple[Token, ...], tuple[int, list[Token]]] = {}

    def begin(self, history: History) -> None:
        """Indexes the new part of the prompt."""
        self._follow(history)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Copies a chain; drafts nothing if no suffix of enough tokens occurred before."""
        if self._cut or len(self.index) != len(history.tokens):
            self._follow(history)
        matched, end = self.index.match
        if matched < self._min_match:
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
        if self._cut or len(self.index) != size:
            self._follow(history)
        if self._at != size:
            self._at, self._behind = size, {}
        depth = draft.tree.first_path
        first = draft.tree.tokens[:depth]
        matched, end = self.index.match_after(first)
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
        if not self._cut and len(self.index) + len(step.tokens) == len(history.tokens):
            self.index.extend(step.tokens)

    def rewind(self, length: int) -> None:
        """Records a cut; the next draft or prompt rebuilds the index, unless the text is the same again."""
        self._cut = self._cut or length < len(self.index)

    def close(self) -> None:
        self.index = SuffixAutomaton()

    def _follow(self, history: History) -> None:
        """Makes the index cover exactly the history; extends it if its text is a prefix, else rebuilds it."""
        known = len(self.index)
        if self.index.tokens != history.tokens[:known]:
            self.index, known = SuffixAutomaton(), 0
        self.index.extend(history.tokens[known:])
        self._cut = False


METHOD: Final = Method(
    PromptLookup.name,
    lambda _: PromptLookup(),
    about="copies what followed the same words earlier in the chat",
    auto=True,
)
