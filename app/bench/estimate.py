"""Estimates the remaining time of a benchmark, from the remaining replies and the speed of each drafter."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import fmean
from time import perf_counter


class Estimate:
    """Adds up the expected time of the remaining replies.

    A reply takes its drafter's seconds per token, prefill included, times the mean tokens of the replies to its kind of
    text. Newer replies weigh more, so that a machine that becomes busy shows soon.
    """

    def __init__(self, names: Sequence[str], tokens: int, clock: Callable[[], float] = perf_counter) -> None:
        """``names``: the drafters in the order of a turn; ``tokens``: the maximum of a reply."""
        self._names, self._most, self._clock = names, tokens, clock
        self.pace: dict[str, float] = {}
        """Seconds per token of each drafter, at first those of its warm-up."""
        self._lengths = defaultdict[str, list[int]](list)  # tokens of the replies, by kind of text
        self._kind = ""
        self._waiting: list[tuple[str, str]] = []  # kind of text and drafter of each reply that was not begun
        self._current: tuple[str, float] | None = None  # drafter and begin
        self._began = clock()

    def begin(self, kind: str, turns: int, later: Sequence[tuple[str, int]]) -> None:
        """Begins a conversation; ``later`` has the kind of text and the turns of each that follows."""
        every = [(kind, turns), *later]
        self._kind, self._current = kind, None
        self._waiting = [(each, name) for each, count in every for _ in range(count) for name in self._names]

    def reply(self, name: str) -> None:
        self._current = (name, self._clock())
        if (self._kind, name) in self._waiting:
            self._waiting.remove((self._kind, name))

    def end(self, tokens: int) -> None:
        if self._current:
            name, began = self._current
            pace = (self._clock() - began) / max(1, tokens)
            self.pace[name] = (pace + self.pace.get(name, pace)) / 2
            self._lengths[self._kind].append(tokens)
            self._current = None

    def left(self) -> float | None:
        """Remaining seconds; None while nothing is known."""
        if not self.pace:
            return None
        lengths = {kind: self._length(kind) for kind in {self._kind, *(kind for kind, _ in self._waiting)}}
        usual, current = max(self.pace.values()), 0.0
        if self._current:
            name, began = self._current
            current = max(0.0, lengths[self._kind] * self.pace.get(name, usual) - (self._clock() - began))
        return current + sum(lengths[kind] * self.pace.get(name, usual) for kind, name in self._waiting)

    @property
    def share(self) -> float:
        left, gone = self.left(), self._clock() - self._began
        return 0.0 if left is None or gone + left <= 0 else gone / (gone + left)

    def _length(self, kind: str) -> float:
        if known := self._lengths.get(kind):
            return fmean(known)
        known = [tokens for each in self._lengths.values() for tokens in each]
        return sqrt(fmean(known) * self._most) if known else self._most  # another kind of text may be longer


def about(seconds: float) -> str:
    """A rough time in words: "about 40 s", "about 3 min", "about 2.5 h"."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
