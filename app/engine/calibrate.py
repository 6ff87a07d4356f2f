"""Measures a model on this machine: plain decoding, attention, threads."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, Protocol

import llama_cpp

from slipstream.drafters.base import Step
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import built, physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions, Target
from slipstream.models.types import EMPTY_TREE, Token, TokenTree

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
_PLAIN_S: Final = 0.25
_KEPT: Final = "attention"
LENGTH: Final = 768  # tokens in the cache, as in a chat of a few turns
_FOUR: Final = TokenTree.chain((1, 2, 3))
PASSES: Final = 5
_GAIN: Final = 0.9  # storing scores must take less than this share of flash attention's time
_SECONDS: Final = 0.3  # maximum time to measure one number of threads
_THREAD_ROWS: Final = 6  # rows that one measurement adds to the cache before it rewinds
_SLOW: Final = 4.0  # a pass is slow if a row takes more than this many usual plain passes
_PATIENCE: Final = 4  # consecutive slow passes before threads are measured again


def measure_plain(target: Target) -> float:
    """The milliseconds of an undisturbed single-row pass, the baseline of the speed-up."""
    start = min(8, target.abilities.n_ctx - 1)
    target.prefill([_token(target, at) for at in range(start)])
    until = perf_counter() + _PLAIN_S
    passes: list[float] = []
    while len(passes) < 24 and (len(passes) < 5 or perf_counter() < until):
        if len(target.tokens) == target.abilities.n_ctx:
            target.rewind(start)
        began = perf_counter()
        target.evaluate(_token(target, len(passes)), EMPTY_TREE)
        target.keep(())
        passes.append(1e3 * (perf_counter() - began))
    target.rewind(0)
    kept = sorted(passes[3:])  # the first passes warm the caches
    return kept[len(kept) // 4]  # slower ones may have been disturbed


def _token(target: Target, at: int) -> Token:
    return (at * 7919 + 4099) % target.abilities.n_vocab


def flash_attention_is_slower(small: Path, folder: Path | None) -> bool:
    """Compares flash attention, llama.cpp's default, with attention that stores its scores, on one small model.

    On llama.cpp's CPU backend, flash attention computes the rows of a small pass one by one. On x86-64 with AVX-512 and
    768 tokens in an F16 cache, it makes a pass of one row twice as slow, and a pass of four rows three times. The
    result for this build on this machine is stored in the ``folder``.
    """
    try:
        memory = DrafterMemory(folder, read_header(small).fingerprint) if folder else None
        key = f"{llama_cpp.__version__} {built()} {physical_cores()} "
        kept = memory.read(_KEPT) if memory else None
        for found in (True, False):
            if kept == f"{key}{found}".encode():
                return found
        with closing(LlamaModel(small, placement=Placement(0, ()))) as model:
            found = _compare(model)
        if memory:
            memory.write(_KEPT, f"{key}{found}".encode())
        return found
    except SlipstreamError:
        return False


def _compare(model: LlamaModel) -> bool:
    with ExitStack() as opened:
        options = [ContextOptions(n_ctx=LENGTH + 64, max_leaves=2, flash=flash) for flash in (True, False)]
        targets = [opened.enter_context(closing(LlamaTarget(model, each))) for each in options]
        for target in targets:
            target.prefill([at % target.abilities.n_vocab for at in range(LENGTH)])
        took: list[list[float]] = [[], []]
        for _ in range(PASSES):  # alternates, so that a busy machine slows down both
            for target, times in zip(targets, took, strict=True):
                times.append(pass_time(target))
        flash, scores = (median(times) for times in took)
        return scores < _GAIN * flash


def pass_time(target: Target) -> float:
    took = timed_pass(target, EMPTY_TREE) + timed_pass(target, _FOUR)
    target.rewind(LENGTH)
    return took


def timed_pass(target: Target, tree: TokenTree, clock: Callable[[], float] | None = None) -> float:
    clock = clock or perf_counter
    began = clock()
    target.evaluate(0, tree)
    target.keep(())
    return 1e3 * (clock() - began)


class Threaded(Target, Protocol):
    """A target whose number of threads can be chosen."""

    def use_threads(self, count: int) -> None:
        """Sets the number of threads."""


class Threads:
    """Chooses the number of threads of a target and its draft model, and chooses again when the machine changes.

    Threads wait for each other many times a pass. Where other programs keep the cores busy, one thread can be many
    times faster than all of them (a 7M model on two busy cores, four rows: 15 ms against 159 ms). Only for models whose
    logits do not depend on it, see ``exactness``.
    """

    def __init__(self, target: Threaded, followers: Sequence[Threaded], cores: int, pause: float = 10.0) -> None:
        """Measures for the first time; busy cores are measured again after ``pause`` seconds, since that is slow."""
        self._target, self._followers, self._cores = target, followers, cores
        self._usual = 0.0  # milliseconds of a plain pass when last measured
        self._slow_steps = 0
        self._tuned = 0.0
        self._pause = pause
        self.count = cores
        self._tune()

    def begin(self) -> bool:
        """Call before a reply: measures again if some cores were busy before; returns whether it did."""
        due = self.count < self._cores and perf_counter() > self._tuned + self._pause
        if due:
            self._tune()
        return due

    def add(self, step: Step) -> bool:
        """Call after a step: measures again if passes have become much slower; returns whether it did."""
        rows = 1 + len(step.draft.tree)
        slow = step.timings.evaluate > _SLOW * self._usual * rows
        self._slow_steps = self._slow_steps + 1 if slow else 0
        due = self._slow_steps == _PATIENCE and self._cores > 1
        if due:
            self._tune()
        return due

    def _tune(self) -> None:
        self._slow_steps = 0
        self._tuned = perf_counter()
        if len(self._target.tokens) + _THREAD_ROWS > self._target.abilities.n_ctx:
            return
        took: dict[int, tuple[float, float]] = {}
        for count in sorted({self._cores, (self._cores + 1) // 2, 1}, reverse=True):
            self._use(count)
            took[count] = self._measure()
        best = min(took, key=lambda count: sum(took[count]))
        self.count = best if sum(took[best]) < 0.75 * sum(took[self._cores]) else self._cores
        self._usual = took[self.count][0]
        self._use(self.count)

    def _measure(self) -> tuple[float, float]:
        target, start = self._target, len(self._target.tokens)
        passes: list[tuple[float, float]] = []
        until = perf_counter() + _SECONDS
        while len(passes) < 4 and (not passes or perf_counter() < until):
            one = timed_pass(target, EMPTY_TREE)
            hopeless = not passes and perf_counter() > until  # on busy cores, the pass of four may take seconds
            four = 2 * one if hopeless else timed_pass(target, _FOUR)
            target.rewind(start)
            passes.append((one, four))
        warm = passes[1:] or passes
        return median(one for one, _ in warm), median(four for _, four in warm)

    def _use(self, count: int) -> None:
        for model in (self._target, *self._followers):
            model.use_threads(count)
