"""Measurements at load: the speed of plain decoding, and whether drafting leaves the text the same."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from statistics import median
from time import perf_counter, process_time
from typing import Final

import numpy as np

from slipstream.drafters.autopilot.cost_model import undisturbed
from slipstream.drafters.memory import Memory
from slipstream.models.llama.target import Target
from slipstream.models.types import EMPTY_TREE, Floats, Token, TokenTree

SAME_TEXT: Final = "same text"
SAME_DISTRIBUTION: Final = "same distribution"
SAMPLE_TEXT: Final = """The lighthouse had stood on the rock for two hundred years before anyone asked who built it. Its
lamp was lit each evening at dusk, and the keeper wrote the weather into a book: wind from the west, 14 knots, rain
after midnight. On clear days one could see the islands, and on most days one could not.

Here is how to read such a book with a program:

def rows(path):
    with open(path) as file:
        for line in file:
            date, wind, note = line.split(";")
            yield date, float(wind), note.strip()

1. Read every line. 2. Leave out what is empty. 3. Count how often the wind came from each direction, and compare it
with the year before. Most keepers rounded their numbers, so small differences mean little; a storm, however, was never
forgotten, and its name stands in capital letters at the top of the page.
"""
"""Text for measuring the cost of passes: prose, a list and a program."""
_PROMISE: Final = "promise"
_PREFIXES: Final = (48, 600)  # below and above the 512 cells where llama.cpp's attention changes its path
_WIDTHS: Final = (2, 3, 5, 9, 17)
_ROWS: Final = 18
_PLAIN_S: Final = 0.25


def measure_plain(target: Target) -> float:
    """Times single-row passes, the baseline of the speed-up.

    Returns:
        The median in milliseconds, without passes that another program disturbed.
    """
    start = min(8, target.abilities.n_ctx - 1)
    target.prefill([_token(target, at) for at in range(start)])
    until = perf_counter() + _PLAIN_S
    passes: list[tuple[float, float]] = []
    while len(passes) < 24 and (len(passes) < 5 or perf_counter() < until):
        if len(target.tokens) == target.abilities.n_ctx:
            target.rewind(start)
        began, processor_began = perf_counter(), process_time()
        target.evaluate(_token(target, len(passes)), EMPTY_TREE)
        target.keep(())
        passes.append((1e3 * (perf_counter() - began), 1e3 * (process_time() - processor_began)))
    target.rewind(0)
    return median(undisturbed(passes[3:]))  # the first passes warm the caches


def measure_promise(target: Target, plain_ms: float, seconds: float = 3.0) -> str:
    """Compares passes of several widths with single-row passes, bit by bit, from a short and a long prefix.

    It stops after ``seconds``, or after the time of 20 single-row passes if that is longer.

    Args:
        target: Compared only if it keeps its cells in order (``Abilities.same_text``).
        plain_ms: Milliseconds of a single-row pass.
        seconds: Time limit, longer for slow models.

    Returns:
        ``SAME_TEXT`` if all bits are the same; ``SAME_DISTRIBUTION`` if not, or if the time was too short.
    """
    if not target.abilities.same_text:
        return SAME_DISTRIBUTION
    until = perf_counter() + max(seconds, 20 * plain_ms / 1e3)
    with closing(_plain_and_wide(target, lambda: perf_counter() > until)) as pairs:
        same = all(pair is not None and np.array_equal(*pair) for pair in pairs)
    return SAME_TEXT if same else SAME_DISTRIBUTION


def measure_rounding(target: Target) -> float:
    """Compares passes of several widths with single-row passes; returns the largest difference of a logit."""
    with closing(_plain_and_wide(target, lambda: False)) as pairs:
        return max((float(np.abs(np.subtract(*pair)).max()) for pair in pairs if pair), default=0.0)


def _plain_and_wide(target: Target, late: Callable[[], bool]) -> Generator[tuple[Floats, Floats] | None]:
    """Yields logits of single-row passes, each with those of a wider pass at the same token; None once it is late."""
    prefixes = [n for n in _PREFIXES if n + _ROWS < target.abilities.n_ctx]
    widths = [w for w in _WIDTHS if w <= target.abilities.max_rows]
    try:
        for prefix in prefixes:
            start = [_token(target, at) for at in range(prefix)]
            tail = [_token(target, 7 * at + 1) for at in range(_ROWS)]
            if not target.prefill(start, cancelled=late).complete:
                yield None
                return
            plain: list[Floats] = []
            for token in tail:
                if late():
                    yield None
                    return
                plain.append(target.evaluate(token, EMPTY_TREE).logits[0].copy())
                target.keep(())
            for width in widths:
                if late():
                    yield None
                    return
                target.rewind(prefix)
                rows = target.evaluate(tail[0], TokenTree.chain(tail[1:width])).logits
                yield from ((plain[at], rows[at]) for at in range(width))
                target.keep(tuple(range(width - 1)))
                yield plain[width], target.evaluate(tail[width], EMPTY_TREE).logits[0]
                target.keep(())
    finally:
        target.rewind(0)


def kept_promise(target: Target, plain_ms: float, memory: Memory | None, key: str) -> str:
    """Returns ``SAME_TEXT`` if an earlier load proved it, else the result of ``measure_promise``.

    The proof depends only on the model, build, device and settings. It is kept because a busy machine may be too slow
    to repeat it in time.

    Args:
        target: See ``measure_promise``.
        plain_ms: Milliseconds of a single-row pass.
        memory: Stores the proof; None to store nothing.
        key: Identifies the model, build, device and settings.
    """
    proof = f"{SAME_TEXT} {key}".encode()
    if target.abilities.same_text and memory and memory.read(_PROMISE) == proof:
        return SAME_TEXT
    promise = measure_promise(target, plain_ms)
    if promise == SAME_TEXT and memory:
        memory.write(_PROMISE, proof)
    return promise


def _token(target: Target, at: int) -> Token:
    """Token number ``at`` of a sequence that repeats only after many tokens."""
    return (at * 7919 + 4099) % target.abilities.n_vocab
