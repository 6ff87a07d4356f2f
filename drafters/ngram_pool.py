"""N-grams by their first token, the latest used first: Lookahead's memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from slipstream.models.types import Token

_OWN_DECAY: Final = 0.9  # text turns from one n-gram to another faster than all of them change


@dataclass(slots=True)
class Share:
    """How often something was right, or how much it brought, recent outcomes first.

    Attributes:
        tries: Outcomes heard, older ones counting less.
        sum: Their sum, weighed alike.
        decay: What an outcome weighs once another has followed.
    """

    tries: float = 0.0
    sum: float = 0.0
    decay: float = 0.99

    def hear(self, outcome: float) -> None:
        """Takes one outcome: 0 or 1 for a share of successes."""
        self.tries = self.decay * self.tries + 1
        self.sum = self.decay * self.sum + outcome

    def given(self, prior: float, weight: float) -> float:
        """The mean of what was heard and of ``weight`` outcomes of ``prior``."""
        return (self.sum + weight * prior) / (self.tries + weight)


@dataclass(slots=True)
class NGram:
    """One n-gram of the pool.

    Attributes:
        tokens: What follows its first token.
        guessed: Whether it was only ever guessed by the window; False once prompt or reply contained it.
        right: How often each of its tokens was right, given those before, when its first token stood last; as long as
            the longest of its trials.
    """

    tokens: tuple[Token, ...]
    guessed: bool
    right: list[Share] = field(default_factory=list)

    def probability(self, at: int, prior: float, weight: float) -> float:
        """How probable its token ``at`` is given those before, where ``prior`` is known of its like."""
        return self.right[at].given(prior, weight) if at < len(self.right) else prior

    def hear(self, at: int, right: bool) -> None:
        """Takes whether token ``at`` was right, those before it having been."""
        if at == len(self.right):
            self.right.append(Share(decay=_OWN_DECAY))
        self.right[at].hear(right)


class NGramPool:
    """At most so many n-grams for each first token, and at most so many first tokens; the least recent leave first."""

    def __init__(self, per_token: int, first_tokens: int = 1 << 16) -> None:
        """Starts empty."""
        self._per_token, self._first_tokens = per_token, first_tokens
        self._grams: OrderedDict[Token, OrderedDict[tuple[Token, ...], NGram]] = OrderedDict()

    def __len__(self) -> int:
        """Number of n-grams."""
        return sum(map(len, self._grams.values()))

    def add(self, first: Token, rest: tuple[Token, ...], *, guessed: bool) -> None:
        """Adds the n-gram of ``first`` and ``rest``, or makes it the latest used of its first token."""
        grams = self._grams.setdefault(first, OrderedDict())
        gram = grams.setdefault(rest, NGram(rest, guessed))
        gram.guessed = gram.guessed and guessed
        grams.move_to_end(rest)
        self._grams.move_to_end(first)
        if len(grams) > self._per_token:
            grams.popitem(last=False)
        if len(self._grams) > self._first_tokens:
            self._grams.popitem(last=False)

    def after(self, first: Token) -> list[NGram]:
        """The n-grams that begin with ``first``, the latest used first."""
        grams = self._grams.get(first)
        return list(reversed(grams.values())) if grams else []

    def clear(self) -> None:
        """Forgets all."""
        self._grams.clear()
