"""Estimates the remaining time of a benchmark, from the remaining replies and the speed of each drafter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from time import perf_counter
from typing import Final

_DECAY: Final = 0.7
"""Decay of older replies' weight at each new reply: a machine that becomes busy shows within three replies."""
_SURE: Final = 8  # tokens of a reply after which its own speed predicts its end


class Estimate:
    """Adds up the expected time of the remaining replies.

    A reply takes its tokens times its drafter's seconds per token, prefill included; those are measured on this kind of
    text if possible. A reply is expected to have as many tokens as another to the same turn; for a later prompt, the
    mean of this kind of text. The sum is scaled by the actual over the expected time of the newest replies.
    """

    def __init__(
        self,
        names: Sequence[str],
        tokens: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """``names``: the drafters in the order of a turn; ``tokens``: the maximum of a reply."""
        self._names, self._most, self._clock = names, tokens, clock
        self.warm: dict[str, float] = {}
        """Seconds per token of each drafter in its warm-up."""
        self._took = defaultdict[tuple[str, str], float](float)  # by drafter and kind of text
        self._tokens = Counter[tuple[str, str]]()
        self._replies = Counter[tuple[str, str]]()
        self._expected = self._actual = 0.0
        self._kind, self._turns = "", 0
        self._later: Sequence[tuple[str, int]] = ()
        self._open: list[str] = []  # drafters that have yet to write this turn
        self._here: int | None = None  # tokens of a reply of this turn
        self._current: tuple[str, float, int] | None = None  # drafter, begin, tokens so far
        self._began = clock()

    def begin(self, kind: str, turns: int, later: Sequence[tuple[str, int]]) -> None:
        """Begins a conversation; ``later`` has the kind of text and the turns of each that follows."""
        self._kind, self._turns, self._later = kind, turns, later
        self._open, self._here, self._current = list(self._names), None, None

    def reply(self, name: str) -> None:
        self._current = (name, self._clock(), 0)

    def wrote(self, tokens: int) -> None:
        if self._current:
            self._current = (*self._current[:2], tokens)

    def end(self, tokens: int) -> None:
        if self._current is None:
            return
        name, began, _ = self._current
        took, key = self._clock() - began, (name, self._kind)
        self._expected = _DECAY * self._expected + self._pace(name, self._kind) * tokens
        self._actual = _DECAY * self._actual + took
        self._took[key] += took
        self._tokens[key] += tokens
        self._replies[key] += 1
        self._here, self._current = tokens, None
        if name in self._open:
            self._open.remove(name)
        if not self._open and self._turns > 1:
            self._turns -= 1
            self._open, self._here = list(self._names), None

    def left(self) -> float | None:
        """Remaining seconds; None while nothing is known."""
        if not self.warm and not self._tokens:
            return None
        scale = self._actual / self._expected if self._expected > 0 else 1.0
        here = self._length(self._kind) if self._here is None else self._here
        waiting, current = list(self._open), 0.0
        if self._current:
            name, began, tokens = self._current
            if name in waiting:
                waiting.remove(name)
            gone, whole = self._clock() - began, scale * here * self._pace(name, self._kind)
            current = gone * max(0.0, here - tokens) / tokens if tokens >= _SURE else max(0.0, whole - gone)
        rest = here * self._sum(waiting, self._kind) + self._whole_turns(self._kind, self._turns - 1)
        return current + scale * (rest + sum(self._whole_turns(kind, turns) for kind, turns in self._later))

    @property
    def share(self) -> float:
        """The elapsed share of the total time, 0 to 1."""
        left, gone = self.left(), self._clock() - self._began
        return 0.0 if left is None or gone + left <= 0 else gone / (gone + left)

    def _whole_turns(self, kind: str, turns: int) -> float:
        return max(0, turns) * self._length(kind) * self._sum(self._names, kind)

    def _sum(self, names: Iterable[str], kind: str) -> float:
        return sum(self._pace(name, kind) for name in names)

    def _pace(self, name: str, kind: str) -> float:
        for keys in ([(name, kind)], [key for key in self._tokens if key[0] == name]):
            if tokens := sum(self._tokens[key] for key in keys):
                return sum(self._took[key] for key in keys) / tokens
        if self.warm:
            return self.warm.get(name, max(self.warm.values()))
        return sum(self._took.values()) / self._tokens.total() if self._tokens else 0.0

    def _length(self, kind: str) -> float:
        for keys in ([key for key in self._tokens if key[1] == kind], list(self._tokens)):
            if replies := sum(self._replies[key] for key in keys):
                mean = sum(self._tokens[key] for key in keys) / replies
                own = any(key[1] == kind for key in keys)
                return mean if own else sqrt(mean * self._most)  # another kind of text may be longer
        return self._most


def about(seconds: float) -> str:
    """A rough time in words: "about 40 s", "about 3 min", "about 2.5 h"."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
