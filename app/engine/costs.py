"""What one pass of the target over n rows costs on this machine, measured at load and followed from step to step."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median
from time import perf_counter
from typing import Final

from slipstream.models.runtime.target import Target
from slipstream.models.types import EMPTY_TREE, Token, TokenTree

_WIDTHS: Final = (2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48)
"""Rows that are measured, the most telling ones first: time may be short."""

_SHORT: Final = 16  # tokens in the cache at the first measurements
_LONG: Final = 640  # beyond the 512 cells where the path of attention changes
_REPEATS: Final = 3
_CLIP: Final = 2.0
"""A step that took more times as long as expected was disturbed; it counts as if it had taken so many times as long."""

_FURTHER: Final = 32  # tokens in the cache that make a difference
_KNOWN: Final = 8  # steps of one width before its deviation counts as drift of the whole machine
_DRIFT: Final = 0.05
_REFINE: Final = 0.02
_AGREE: Final = 1.5
"""Kept costs are taken as they are if a single row's differs by no more than this factor; the drift evens it out."""


class Costs:
    """Milliseconds of a pass by its rows.

    What was measured at some widths and at one or two lengths of text is interpolated; every live step then moves the
    width that it had, and, once a width is known, the drift of all.

    Attributes:
        rows: Milliseconds of a pass of n rows at index n, now; index 0 is not used.
        drift: How much slower than measured the machine is now; 1 is as measured.
    """

    def __init__(self, short: Mapping[int, float], long: Mapping[int, float], long_at: int, most: int) -> None:
        """Takes what was measured.

        Args:
            short: Rows to milliseconds with little text in the cache; 1 is among them.
            long: The same with ``long_at`` tokens in the cache; may be empty.
            long_at: Tokens in the cache then.
            most: Most rows of a pass.
        """
        self._short, self._long, self._long_at, self._most = dict(short), dict(long), long_at, most
        self._base = _interpolated(short, most)
        self._growth = [0.0] * (most + 1)  # ms per token in the cache
        if long:
            apart = long_at - _SHORT
            at_length = {n: max(0.0, (ms - short[n]) / apart) for n, ms in long.items() if n in short}
            self._growth = _interpolated(at_length, most)
        self._refined = [1.0] * (most + 1)
        self._heard = [0] * (most + 1)
        self.drift = 1.0
        self.rows: list[float] = []
        self._used = 0
        self.at(_SHORT)

    def follow(self, used: int) -> None:
        """Takes how many tokens are in the cache now, where that makes a difference."""
        if abs(used - self._used) >= _FURTHER:
            self.at(used)

    def at(self, used: int) -> None:
        """Takes how many tokens are in the cache."""
        self._used, drift, beyond = used, self.drift, used - _SHORT
        parts = zip(self._base, self._growth, self._refined, strict=True)
        self.rows = [drift * refined * (base + growth * beyond) for base, growth, refined in parts]

    def hear(self, rows: int, milliseconds: float) -> None:
        """Takes how long a pass of a step took."""
        expected = self.rows[rows]
        off = min(max(milliseconds / expected, 1 / _CLIP), _CLIP)
        heard = self._heard[rows] = self._heard[rows] + 1
        if rows > 1:
            # what was interpolated, or measured once, is now measured live; plain passes were measured well
            share = 1 / heard if heard <= _KNOWN else _REFINE
            change = 1 + share * (off - 1)
            self._refined[rows] *= change
            self.rows[rows] *= change
            if heard <= _KNOWN:
                return
        self.drift *= 1 + _DRIFT * (off - 1)
        if heard % 8 == 0:  # all rows at once cost a few microseconds
            self.at(self._used)

    def slope(self, rows: int) -> float:
        """Milliseconds a row at the least, for passes of up to ``rows`` rows: the first rows may cost more."""
        first, costs = self.rows[1], self.rows
        return min((costs[n] - first) / (n - 1) for n in range(2, rows + 1)) if rows > 1 else first

    def dump(self, key: str) -> bytes:
        """Packs what was measured, for a machine and a build that ``key`` names."""
        kept = {"key": key, "short": self._short, "long": self._long, "long_at": self._long_at}
        return json.dumps(kept).encode()

    @staticmethod
    def load(packed: bytes, key: str, single: float, most: int) -> Costs | None:
        """Unpacks what was measured, unless it was elsewhere, or the machine is another one now.

        Args:
            packed: What ``dump`` made.
            key: Names the machine and the build.
            single: Milliseconds of a pass of one row, now.
            most: Most rows of a pass.
        """
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # not ours, or damaged: measured anew
            kept = json.loads(packed)
            short, long = ({int(n): float(ms) for n, ms in kept[name].items()} for name in ("short", "long"))
            good = all(0 < ms < 1e6 for ms in (*short.values(), *long.values()))
            if kept["key"] == key and good and 1 / _AGREE < single / short[1] < _AGREE:
                costs = Costs(short, long, int(kept["long_at"]), most)
                costs.drift = single / short[1]
                costs.at(_SHORT)
                return costs
        return None


def measure_costs(target: Target, single: float, seconds: float = 1.0) -> Costs:
    """Times passes of several widths, with little text in the cache, and with more where there is time.

    Takes the larger of ``seconds`` and 20 passes of a single row; widths that it has no time for are interpolated. The
    cache is empty afterwards.

    Args:
        target: Where to measure.
        single: Milliseconds of a pass of one row, about.
        seconds: Least time to take.
    """
    clock = _Clock(target, perf_counter() + max(seconds, 20 * single / 1e3), single)
    most = target.abilities.max_rows
    widths = [n for n in _WIDTHS if n <= most]
    long_at = min(_LONG, target.abilities.n_ctx - most - 1)
    try:
        short = clock.measure(_SHORT, widths, share=0.6)
        long = clock.measure(long_at, widths[:6:2], share=1.0) if long_at > 4 * _SHORT else {}
    finally:
        target.rewind(0)
    return Costs({1: single} | short, long if 1 in long and 1 in short else {}, long_at, most)


class _Clock:
    """Times passes until a moment."""

    def __init__(self, target: Target, until: float, single: float) -> None:
        self._target, self._until, self._single = target, until, single

    def measure(self, length: int, widths: Sequence[int], share: float) -> dict[int, float]:
        """Rows to the median of their milliseconds, with ``length`` tokens in the cache; empty if that takes too long.

        A share of the time that is left may be used; what is expected not to fit is left out.
        """
        now = perf_counter()
        until = now + share * (self._until - now)
        target, start = self._target, [_token(self._target, at) for at in range(length)]
        if not target.prefill(start, cancelled=lambda: perf_counter() > until).complete:
            return {}
        took: dict[int, list[float]] = {}
        expected = self._single
        for turn in range(_REPEATS):
            for width in (1, *widths):
                if width in took:
                    expected = 1e3 * median(took[width])
                elif turn:
                    continue  # there was no time for it
                elif width > 1:
                    expected = _guess(took, width, self._single)
                if perf_counter() + (2 if width == 1 else 1) * expected / 1e3 > until:
                    continue
                if width == 1:  # as most are: after another one, whose graph llama.cpp takes again
                    target.evaluate(_token(target, turn), EMPTY_TREE)
                    target.keep(())
                    target.rewind(length)
                tree = TokenTree.chain([_token(target, 3 * at + turn) for at in range(width - 1)])
                began = perf_counter()
                target.evaluate(_token(target, width), tree)
                target.keep(())
                took.setdefault(width, []).append(perf_counter() - began)
                target.rewind(length)
        return {width: 1e3 * median(times) for width, times in took.items()}


def _guess(took: Mapping[int, Sequence[float]], width: int, single: float) -> float:
    """Milliseconds that a width not measured yet may take: as the next smaller one a row."""
    below = max((n for n in took if n < width), default=0)
    return 1e3 * median(took[below]) * width / below if below else single * width


def _interpolated(known: Mapping[int, float], most: int) -> list[float]:
    """Values at 0 to ``most``, linear between those known; beyond the last as between the last two."""
    places = sorted(known)
    values = [known[places[0]]]
    for n in range(1, most + 1):
        at = bisect_left(places, n)
        if at < len(places) and places[at] == n:
            values.append(known[n])
        elif len(places) == 1:
            values.append(known[places[0]] * (n if places[0] == 1 else 1))
        else:
            low, high = places[min(max(at, 1), len(places) - 1) - 1], places[min(max(at, 1), len(places) - 1)]
            slope = (known[high] - known[low]) / (high - low)
            values.append(max(known[low] + slope * (n - low), known[places[0]]))
    return values


def _token(target: Target, at: int) -> Token:
    """A run of ordinary tokens that does not repeat itself soon."""
    return (at * 7919 + 4099) % target.abilities.n_vocab
