"""An online suffix automaton over tokens that remembers where each substring last ended."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from slipstream.models.types import Token

_NO_STATE: Final = -1
_FRESHENED: Final = 32  # suffixes whose latest end is brought up to date per token


class SuffixAutomaton:
    """Finds the longest suffix of a text that occurred before in it, at amortised constant work per token.

    The classic construction (Blumer et al., 1985) with end positions, as SAM-Decoding (arXiv 2411.10666) uses it, but
    with the *latest* end of every state instead of the first. The state that the suffix link of the whole text points
    to is the longest suffix that occurred before, so no separate matching is needed.

    Keeping the latest ends exact would mean one write per distinct suffix and token, which is quadratic in text like
    "aaaa". Only the 32 longest suffixes are brought up to date. The end that ``match`` gives is therefore always a
    true occurrence, and the most recent one unless the matched text lay more than 32 links deep when it last occurred.

    Attributes:
        tokens: The text.
    """

    __slots__ = ("_last", "_latest_end", "_length", "_link", "_match", "_more", "_only_target", "_only_token", "tokens")

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        """Indexes ``tokens``."""
        self.tokens: list[Token] = []
        # Most states have one edge: it stands in two arrays, and only branching states cost a dict.
        self._length, self._link = array("i", [0]), array("i", [_NO_STATE])
        self._latest_end = array("i", [-1])
        self._only_token, self._only_target = array("q", [0]), array("i", [_NO_STATE])
        self._more: dict[int, dict[Token, int]] = {0: {}}
        self._last = 0
        self._match = (0, -1)
        self.extend(tokens)

    def __len__(self) -> int:
        """Length of the text."""
        return len(self.tokens)

    @property
    def match(self) -> tuple[int, int]:
        """Length of the longest suffix that occurred before, and the index of an earlier occurrence's last token.

        (0, -1) where the last token is new. Occurrences may overlap.
        """
        return self._match

    def extend(self, tokens: Iterable[Token]) -> None:
        """Appends tokens to the text."""
        for token in tokens:
            self._append(token)

    def continuation(self, end: int, count: int) -> list[Token]:
        """Copies ``count`` tokens from behind index ``end``; past the end of the text the copy goes on with itself.

        Text that repeats with a period is so continued with that period.
        """
        copied = self.tokens[end + 1 : end + 1 + count]
        while len(copied) < count:
            copied.append(copied[len(copied) - (len(self.tokens) - 1 - end)])
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
        """Gives the suffixes of ``target`` that also end here a state of their own."""
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
