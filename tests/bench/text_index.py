"""Measures what an index costs on this machine: ``python -m tests.bench.text_index 10000 10000000``."""

from __future__ import annotations

import gc
import sys
import tempfile
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.base import Drafter, Step
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index import TextIndex, TextPiece
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Evaluation, History

HISTORIES: Final = (1_000, 32_000)
_VOCABULARY: Final = 32_000
_DOCUMENT: Final = 2_000  # tokens
_BATCH: Final = 1_000_000
_STEPS: Final = 500
_NO_ROWS: Final = Evaluation(np.zeros((1, 1), np.float32))


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a drafter costs while a text grows by single tokens."""

    history: int  # tokens of the text before
    microseconds: float  # of drafting and of hearing the next token; the median over the steps
    nodes: float  # drafted tokens a step; the mean

    def __str__(self) -> str:
        """A line."""
        return f"step at {self.history:,} tokens of history: {self.microseconds:.0f} us ({self.nodes:.1f} nodes)"


@dataclass(frozen=True, slots=True)
class Costs:
    """What an index costs."""

    tokens: int  # indexed tokens
    bytes: float  # bytes on disk for each of them
    # bytes of resident memory for each of them once it is open and searched, file pages included; None where the system
    # does not tell
    memory: float | None
    build: float  # seconds to make them and to add them at once
    reply: float  # milliseconds to add a reply of 400 tokens; the median of 9
    remove: float  # milliseconds to remove one document
    steps: tuple[StepCost, ...]  # of the drafter

    def __str__(self) -> str:
        """Some lines."""
        memory = "unknown" if self.memory is None else f"{self.memory:.1f} MB"
        lines = [
            f"retrieval, {self.tokens:,} indexed tokens",
            *(f"  {step}" for step in self.steps),
            f"  a million tokens: {self.bytes:.1f} MB on disk, {memory} in memory",
            f"  built in {self.build:.1f} s",
            f"  a reply added in {self.reply:.1f} ms, a document removed in {self.remove:.1f} ms",
        ]
        return "\n".join(lines)


def measure(folder: Path, tokens: int, histories: Sequence[int] = HISTORIES) -> Costs:
    """Builds an index of repeated phrases in an empty folder, and drafts from it after text of the same kind."""
    index = TextIndex(folder, "costs", _VOCABULARY)
    began = perf_counter()
    parts = [_text(start, min(_BATCH, tokens - start)) for start in range(0, tokens, _BATCH)]
    whole = array("I", np.concatenate(parts).tolist())
    index.add([TextPiece(f"{at}", whole[at : at + _DOCUMENT]) for at in range(0, tokens, _DOCUMENT)])
    build = perf_counter() - began
    index.close()
    before = _resident()
    index = TextIndex(folder, "costs", _VOCABULARY)
    steps = tuple(step_cost(Retrieval(index), length) for length in histories)
    after = _resident()
    size = index.size()
    texts = [[TextPiece("chat", _text(tokens + number, 400).tolist())] for number in range(9)]
    replies = [_timed(partial(index.add, text)) for text in texts]
    remove = _timed(partial(index.remove, ["0"]))
    memory = None if before is None or after is None else (after - before) / size.tokens
    return Costs(size.tokens, size.bytes / size.tokens, memory, build, 1e3 * median(replies), 1e3 * remove, steps)


def step_cost(drafter: Drafter, length: int) -> StepCost:
    """Drafts after a text of this length, and after each of some more tokens.

    The target writes on as the text does, one token a step: the most work a token that there can be.
    """
    text = _text(-1, length + _STEPS).tolist()
    sampler, history = Sampler(), History(text[:length])
    drafter.begin(history)
    times, nodes = [], 0
    for token in text[length:]:
        began = perf_counter()
        draft = drafter.draft(history, lambda path, depth: path > 0.1 and depth <= 8, sampler)
        drafted = perf_counter() - began
        history.tokens.append(token)
        step = Step(draft, (), (token,), _NO_ROWS)
        began = perf_counter()
        drafter.observe(history, step)
        times.append(drafted + perf_counter() - began)
        nodes += len(draft.tree)
    return StepCost(length, 1e6 * median(times), nodes / len(times))


def _resident() -> int | None:
    """Resident bytes of this process; None where the system does not tell."""
    gc.collect()
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), None)


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


def main(sizes: Sequence[int]) -> None:
    """Prints the costs of indexes of these sizes, and of ``lookup``, whose index is the text itself."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            print(measure(Path(place) / "index", size), flush=True)
    print("lookup")
    for length in HISTORIES:
        print(f"  {step_cost(PromptLookup(), length)}", flush=True)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
