"""Measures what an index costs on this machine: ``python -m slipstream.drafters.text_index.costs 10000000``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.text import Piece
from slipstream.models.sampling import Sampler
from slipstream.models.types import History

_VOCABULARY = 32_000
_DOCUMENT = 2_000  # tokens
_BATCH = 1_000_000
_SEARCHES = 500


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured.

    Attributes:
        tokens: Indexed tokens.
        bytes: Bytes on disk for each of them.
        build: Seconds to add them in batches of a million and to merge those.
        reply: Milliseconds to add a reply of 400 tokens; the median of 9.
        remove: Milliseconds to remove one document.
        steps: History length to (median microseconds of a draft, mean number of its nodes).
    """

    tokens: int
    bytes: float
    build: float
    reply: float
    remove: float
    steps: dict[int, tuple[float, float]]


def measure(folder: Path, tokens: int, histories: tuple[int, ...] = (1_000, 32_000)) -> Costs:
    """Builds an index of repeated phrases in an empty folder, and drafts from it after text of the same kind."""
    index = TextIndex(folder, "costs", _VOCABULARY)
    began = perf_counter()
    for start in range(0, tokens, _BATCH):
        text = _text(start, min(_BATCH, tokens - start)).tolist()
        names = range(0, len(text), _DOCUMENT)
        index.add([Piece(f"{start + at}", text[at : at + _DOCUMENT]) for at in names])
    index.tidy()
    build = perf_counter() - began
    texts = [[Piece("chat", _text(tokens + number, 400).tolist())] for number in range(9)]
    replies = [_timed(partial(index.add, text)) for text in texts]
    steps = {length: _steps(index, length) for length in histories}
    size = index.size()
    remove = _timed(partial(index.remove, ["0"]))
    return Costs(size.tokens, size.bytes / size.tokens, build, 1e3 * median(replies), 1e3 * remove, steps)


def _steps(index: TextIndex, length: int) -> tuple[float, float]:
    text = _text(-1, length + _SEARCHES).tolist()
    drafter, sampler, history = Retrieval(index), Sampler(), History(text[:length])
    drafter.begin(history)
    times, nodes = [], 0
    for token in text[length:]:
        began = perf_counter()
        draft = drafter.draft(history, lambda path, depth: path > 0.1 and depth <= 8, sampler)
        times.append(perf_counter() - began)
        nodes += len(draft.tree)
        history.tokens.append(token)
    return 1e6 * median(times), nodes / len(times)


def _text(seed: int, size: int) -> NDArray[np.int64]:
    """Phrases of 2 to 9 tokens, the common ones far more often, from one stock for every seed."""
    stock = np.random.default_rng(0)
    lengths = stock.integers(2, 10, 50_000)
    tokens = np.minimum(stock.zipf(1.2, lengths.sum()), _VOCABULARY) - 1
    phrases = np.split(tokens, np.cumsum(lengths)[:-1])
    chosen = np.random.default_rng(seed + 2).zipf(1.1, size)  # two or more tokens each, hence enough
    return np.concatenate([phrases[rank] for rank in (chosen - 1) % len(phrases)])[:size]


def _timed(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(measure(Path(place) / "index", int(sys.argv[1])))
