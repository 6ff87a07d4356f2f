"""The time of a pass of the target over n rows on this machine: measured at load, refined by every step."""

from __future__ import annotations

import json
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from time import perf_counter
from typing import Final

from slipstream.drafters.autopilot import settings
from slipstream.models.llama.target import Target
from slipstream.models.types import Token, TokenTree, padded

DAMAGED: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RecursionError)
"""What reading a file may raise that is damaged or of another version; its content is then measured again."""

MEASURABLE: Final = sys.platform != "win32"


class Disturbance:
    """Detects passes that another program disturbed, by their processor time per millisecond.

    The threads of a pass compute, or spin until the last one is done. So while one of them waits for a core, the pass
    gets less processor time per millisecond than usual. Windows counts processor time in units of 16 ms, which is too
    coarse for a pass; there, no pass counts as disturbed.
    """

    def __init__(self) -> None:
        self._usual = 0.0

    def add(self, milliseconds: float, processor_ms: float) -> bool:
        """Adds a pass with the processor time of all threads, 0 if not measured; returns whether it was disturbed."""
        share = processor_ms / milliseconds if MEASURABLE and milliseconds > 0 else 0.0
        self._usual = max(share, settings.SHARE_DECAY * self._usual)
        # with a small usual share, a GPU computes and the processor only waits: the share then means nothing
        return share < settings.DISTURBED * self._usual and self._usual >= settings.COMPUTES


def clipped(milliseconds: float, usual: float) -> float:
    """Limits a measured time to ``OUTLIER`` times the usual: a longer one was disturbed by another program."""
    return min(milliseconds, settings.OUTLIER * max(usual, settings.LEAST_MS))


class PassWidth:
    """The number of rows that passes are padded to, so that most of them reuse the graph of the pass before.

    A GPU captures a graph and replays it as long as its width stays; another machine is sent a changed graph again. The
    width changes once another one would have saved more time than the change takes.

    Attributes:
        rows: The least rows of a pass now.
        all: The widths to choose from, see ``Abilities.widths``; empty if passes are not padded.
        change_ms: Milliseconds that a change costs: what the first passes of the new width take longer than later ones.
    """

    def __init__(self, widths: Sequence[int], change_ms: float) -> None:
        """Starts with one row."""
        self.all, self.change_ms, self.rows = tuple(widths), change_ms, 1
        self._saved: dict[int, float] = {}  # milliseconds that each width would have saved
        self.use(1)

    def use(self, rows: int) -> None:
        self.rows = rows
        self._saved = dict.fromkeys(self.all, 0.0)

    def choose(self, milliseconds: Mapping[int, float]) -> int:
        """Chooses the width of the next pass, by what its step is worth with each."""
        now = milliseconds[self.rows]
        for width, worth in milliseconds.items():
            self._saved[width] = max(0.0, self._saved[width] + worth - now) if width != self.rows else 0.0
        best = max(self._saved, key=lambda width: self._saved[width])
        if self._saved[best] > self.change_ms:
            self.use(best)
        return self.rows


class CostModel:
    """Milliseconds of a pass by its rows.

    It interpolates measurements at some widths and at one or two lengths of text. Every live pass refines the cost of
    its width and, once that width is known, the drift of all widths. A padded pass costs as much as its padded width.
    Where the passes of a width disagree with its cost, all that was learned from live passes is dropped: another
    program disturbed it.

    Attributes:
        rows: Milliseconds of a pass of n rows at index n, now; index 0 is not used.
        width: The width that passes are padded to.
        plain: Plain passes since the latest wider one; the caller adds those that it does not observe.
        started: Whether what live passes had shown was dropped; the caller resets it.
        drift: How much slower than measured the machine is now; 1 is as measured.
    """

    def __init__(
        self,
        short: Mapping[int, float],
        long: Mapping[int, float],
        long_at: int,
        most: int,
        widths: Sequence[int] = (),
        change_ms: float = 0.0,
    ) -> None:
        """Interpolates measurements: rows to milliseconds.

        Args:
            short: With little text in the cache; it must include 1.
            long: With ``long_at`` tokens in the cache; may be empty.
            most: Maximum rows of a pass.
        """
        self.width = PassWidth([width for width in widths if width <= most], change_ms)
        self._padded = [padded(rows, self.width.all) for rows in range(most + 1)]  # rows of a pass that needs n
        self._latest, self._equal = 1, settings.REPLAYED  # rows of the latest pass, and of how many before it
        self._disagreed: list[float] = []  # ratios of the latest passes to their cost, while they are far from 1
        self._short, self._long, self._long_at = dict(short), dict(long), long_at
        self._base = _interpolated(short, most)
        self._growth = [0.0] * (most + 1)  # milliseconds per token in the cache
        if long:
            further = long_at - settings.SHORT_TEXT
            growth = {n: max(0.0, (ms - short[n]) / further) for n, ms in long.items() if n in short}
            self._growth = _interpolated(growth, most)
        self.rows: list[float] = []
        self._cached = settings.SHORT_TEXT
        self._start(1.0)

    def _start(self, drift: float) -> None:
        """Drops what live passes have shown."""
        self.drift, self.started, self.plain, count = drift, True, 0, len(self._base)
        self._refined, self._observed = [1.0] * count, [0] * count
        self._factors: list[list[float]] = [[] for _ in range(count)]  # of first live passes, sorted
        self.set_length(self._cached)

    def set_length(self, cached: int) -> None:
        """Sets how many tokens are in the cache."""
        self._cached, drift, further = cached, self.drift, cached - settings.SHORT_TEXT
        parts = zip(self._base, self._growth, self._refined, strict=True)
        costs = [drift * refined * (base + growth * further) for base, growth, refined in parts]
        self.rows = [costs[width] for width in self._padded]

    def observe(self, rows: int, milliseconds: float) -> None:
        """Adds the time of a live pass that needed ``rows`` rows."""
        rows = self._padded[rows]
        self._equal = self._equal + 1 if rows == self._latest else 1
        self._latest = rows
        if self.width.change_ms and self._equal < settings.REPLAYED:
            return  # a changed width needs a new graph; few passes do
        self.plain = self.plain + 1 if rows == 1 else 0
        if self.plain > settings.IDLE_FULL_STEPS:  # too high a cost of wider passes would never be corrected
            self._start(self.drift * self._refined[1])
        ratio = max(milliseconds, settings.LEAST_MS) / self.rows[rows]
        agrees = 1 / settings.AGREE < ratio < settings.AGREE
        self._disagreed = [] if agrees else [*self._disagreed, ratio]
        if len(self._disagreed) == settings.CONFIRMED:
            self._start(self.drift * median(self._disagreed))
            self._disagreed = []
            return
        ratio = min(max(ratio, 1 / settings.OUTLIER), settings.OUTLIER)
        observed = self._observed[rows] = self._observed[rows] + 1
        if observed <= settings.KNOWN:
            factors = self._factors[rows]
            insort(factors, self._refined[rows] * ratio)
            self._refined[rows] = factors[(observed - 1) // 2]
            self._interpolate()
            return
        if rows > 1:
            change = 1 + settings.REFINE * (ratio - 1)
            self._refined[rows] *= change
            for needed in range(rows, 0, -1):
                if self._padded[needed] != rows:
                    break
                self.rows[needed] *= change
        self.drift *= 1 + settings.DRIFT * (ratio - 1)
        if observed % settings.KNOWN == 0:  # recomputing all rows takes a few microseconds
            self.set_length(self._cached)

    def _interpolate(self) -> None:
        """Interpolates the corrections of widths that were not observed yet."""
        known = {rows: self._refined[rows] for rows, observed in enumerate(self._observed) if observed}
        known.setdefault(1, self._refined[1])
        last = max(known)
        known[len(self._refined) - 1] = known[last]
        self._refined = _interpolated(known, len(self._refined) - 1)
        self.set_length(self._cached)

    @property
    def confirmed(self) -> bool:
        """Whether live plain passes have replaced the time measured at load, which may have been disturbed."""
        return self._observed[1] >= settings.CONFIRMED

    def row_ms(self, rows: int) -> float:
        """Least milliseconds per additional row, over passes of up to ``rows`` rows: the first rows may cost more."""
        first, costs = self.rows[1], self.rows
        return min((costs[n] - first) / (n - 1) for n in range(2, rows + 1)) if rows > 1 else first

    def dump(self, key: str) -> bytes:
        kept = {"key": key, "short": self._short, "long": self._long, "long_at": self._long_at}
        return json.dumps(kept | {"change_ms": self.width.change_ms}).encode()

    @staticmethod
    def load(packed: bytes, key: str, single: float, most: int, widths: Sequence[int] = ()) -> CostModel | None:
        """Unpacks measurements if they still hold where a pass of one row takes ``single`` milliseconds now."""
        with suppress(*DAMAGED):
            kept = json.loads(packed)
            short, long = ({int(n): float(ms) for n, ms in kept[name].items()} for name in ("short", "long"))
            change_ms = float(kept["change_ms"])
            good = all(0 < ms < 1e6 for ms in (*short.values(), *long.values())) and 0 <= change_ms < 1e6
            if kept["key"] == key and good and 1 / settings.AGREE < single / short[1] < settings.AGREE:
                costs = CostModel(short, long, int(kept["long_at"]), most, widths=widths, change_ms=change_ms)
                costs._start(single / short[1])
                return costs
        return None


def measure_costs(
    target: Target,
    single: float,
    seconds: float = settings.MEASURE_SECONDS,
    clock: Callable[[], float] = perf_counter,
    text: Sequence[Token] = (),
) -> CostModel:
    """Times passes of several widths, with little text in the cache, and with more if there is time.

    Takes ``seconds`` or the time of 20 plain passes, whichever is longer; widths that do not fit in are interpolated.
    The cache is empty afterwards.

    Args:
        single: Milliseconds of a pass of one row, roughly.
        text: Tokens to evaluate, repeated if they are too few; arbitrary tokens if empty. With experts, rows of real
            text cost more than equal rows, and less than random ones.
    """
    until = clock() + max(seconds, settings.MEASURE_PASSES * single / 1e3)
    most, n_ctx, few = target.abilities.max_rows, target.abilities.n_ctx, target.abilities.widths
    widths = [n for n in settings.WIDTHS if n <= min(most, n_ctx - settings.SHORT_TEXT) and n == padded(n, few)]
    long_at = min(settings.LONG_TEXT, n_ctx - most - 1)
    measure = partial(_measure, target, single=single, clock=clock, text=text)
    try:
        short_until = (clock() + until) / 2
        short, change_ms = measure(settings.SHORT_TEXT, widths, until=short_until, sure=settings.SURE_WIDTHS)
        long = dict[int, float]()
        if long_at > settings.LONG_WIDTHS[-1]:
            some = [n for n in settings.LONG_WIDTHS if n in widths]
            long, _ = measure(long_at, some, until=until)
    finally:
        target.rewind(0)
    long = long if 1 in long and 1 in short else {}
    return CostModel({1: single} | short, long, long_at, most, widths=few, change_ms=change_ms)


def _measure(
    target: Target,
    length: int,
    widths: Sequence[int],
    *,
    single: float,
    until: float,
    clock: Callable[[], float],
    text: Sequence[Token],
    sure: int = 0,
) -> tuple[dict[int, float], float]:
    """The least milliseconds of passes by rows, with ``length`` tokens in the cache, and of a change of the width.

    Empty if the tokens do not fit the context, or their prefill is too slow. A width is left out if its pass would
    probably not end before ``until``, unless it is one of the first ``sure``: on a busy machine there would be none.

    Most plain passes follow another plain pass, so that llama.cpp reuses its graph; padded passes do the same. So these
    are measured after others of the same width.
    """
    steady = bool(target.abilities.widths)
    if length >= target.abilities.n_ctx:
        return {}, 0.0
    start = _run(target, text, 0, length)
    if not target.prefill(start, cancelled=lambda: clock() > until).complete:
        return {}, 0.0
    took: dict[int, list[float]] = {}  # milliseconds of passes
    changes: dict[int, list[float]] = {}  # of the first passes of a width
    count, number = settings.ROUNDS if steady else 1, 0  # passes that are timed at a time, and of all so far
    for turn in range(1 if steady else settings.ROUNDS):
        for width in (1, *widths):
            if width not in took and turn:
                continue  # there was no time for it
            below = max((n for n in took if n <= width), default=0)
            expected = min(took[below]) * width / below if below else single * width
            warm = settings.REPLAYED if steady else 1 if width == 1 or not turn else 0
            if clock() + (warm + count) * expected / 1e3 > until and (turn or width not in (1, *widths[:sure])):
                continue
            passes = list[float]()
            for _ in range(warm + count):
                last, *others = _run(target, text, length + number * width, width)
                tree = TokenTree.chain(others)
                began = clock()
                target.evaluate(last, tree)
                target.keep(())
                passes.append(1e3 * (clock() - began))
                target.rewind(length)
                number += 1
            took.setdefault(width, []).extend(passes[warm:])
            changes[width] = passes[:warm]
    usual = {width: min(passes) for width, passes in took.items()}  # others were disturbed
    longer = [sum(first) - len(first) * usual[width] for width, first in changes.items() if steady]
    return usual, max(0.0, median(longer)) if longer else 0.0


def _interpolated(known: Mapping[int, float], most: int) -> list[float]:
    """Interpolates linearly at 0 to ``most``; beyond the last known value, continues the line of the last two."""
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


def _run(target: Target, text: Sequence[Token], start: int, size: int) -> list[Token]:
    """A part of the text, or else arbitrary tokens that do not repeat soon."""
    places = range(start, start + size)
    return [text[at % len(text)] if text else (at * 7919 + 4099) % target.abilities.n_vocab for at in places]
