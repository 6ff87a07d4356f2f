"""Whether attention is faster on this machine's processor where its scores are written down: measured once."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import llama_cpp

from slipstream.drafters.memory import Memory
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import read_header
from slipstream.models.runtime.library import built, physical_cores
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.runtime.model import LlamaModel
from slipstream.models.runtime.options import ContextOptions
from slipstream.models.runtime.target import Target
from slipstream.models.types import EMPTY_TREE, TokenTree

_KEPT: Final = "attention"
_LENGTH: Final = 768  # tokens in the cache: a chat of some turns
_ROWS: Final = TokenTree.chain((1, 2, 3))
_PASSES: Final = 5
_GAIN: Final = 0.9


def writes_scores(small: Path, folder: Path | None) -> bool:
    """Compares flash attention, llama.cpp's choice, with attention whose scores are written down, on one small model.

    The flash attention of llama.cpp's processor backend takes the rows of a small pass one by one. On x86-64 with
    AVX-512, 768 tokens in an F16 cache, a pass of one row takes twice as long with it, one of four rows three times.

    Args:
        small: A model that is read in no time.
        folder: Where the finding is kept, good for this build on this machine; None to keep nothing.

    Returns:
        Whether they are clearly faster written down; False where the small model cannot be opened.
    """
    try:
        memory = Memory(folder, read_header(small).fingerprint) if folder else None
        key = f"{llama_cpp.__version__} {built()} {physical_cores()} "
        kept = memory.read(_KEPT) if memory else None
        for found in (True, False):
            if kept == f"{key}{found}".encode():
                return found
        with closing(LlamaModel(small)) as model:
            found = _compare(model)
        if memory:
            memory.write(_KEPT, f"{key}{found}".encode())
        return found
    except SlipstreamError:
        return False


def _compare(model: LlamaModel) -> bool:
    with ExitStack() as opened:
        options = [ContextOptions(n_ctx=_LENGTH + 64, max_leaves=2, flash=flash) for flash in (True, False)]
        targets = [opened.enter_context(closing(LlamaTarget(model, each))) for each in options]
        for target in targets:
            target.prefill([at % target.abilities.n_vocab for at in range(_LENGTH)])
        took: list[list[float]] = [[], []]
        for _ in range(_PASSES):  # in turns: a busy machine slows down both
            for target, times in zip(targets, took, strict=True):
                times.append(_time(target))
        flash, scores = (median(times) for times in took)
        return scores < _GAIN * flash


def _time(target: Target) -> float:
    """Seconds of a pass of one row and of one of four."""
    began = perf_counter()
    for tree in (EMPTY_TREE, _ROWS):
        target.evaluate(0, tree)
        target.keep(())
    took = perf_counter() - began
    target.rewind(_LENGTH)
    return took
