"""The llama.cpp context of a drafting head."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.batch import Batch
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.hidden import SYMBOLS
from slipstream.models.llama.library import rows_at, run_pass, threads_of
from slipstream.models.types import Floats

ROWS: Final = 64
"""Maximum rows of one pass; small, since these graphs compute the logits of every row."""


class HeadContext:
    """A head's context; provides logits, and features, which llama.cpp calls nextn embeddings."""

    def __init__(self, target: LlamaTarget, model: Any, params: Any, width: int, masked: bool = True) -> None:
        """Opens a context.

        Args:
            target: The target; it provides the weights that the head lacks, and the number of threads.
            model: The ``llama_model`` of the head. The caller has checked that it fits the target; otherwise a later
                pass would crash the process.
            masked: Whether only rows with outputs have features; otherwise all rows have them.
        """
        params.n_batch = params.n_ubatch = ROWS
        params.ctx_other = target.context
        self._target, self._width = target, width
        self.pointer = C.llama_init_from_model(model, params)
        if not self.pointer:
            raise SlipstreamError("there is not enough memory for the drafting head.", "Use another drafter.")
        self.memory = C.llama_get_memory(self.pointer)
        self.batch = Batch(ROWS, params.n_seq_max)
        self._logits_width = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
        self._threads = params.n_threads
        SYMBOLS.set_features(self.pointer, True, masked)

    def run(self, call: Any = C.llama_decode) -> None:
        """Runs the batch with the target's current number of threads.

        Raises:
            SlipstreamError: If the pass fails; some of its rows may already be in the cache.
        """
        threads = threads_of(self._target.context)
        if threads != self._threads:
            C.llama_set_n_threads(self.pointer, threads, threads)
            self._threads = threads
        code = run_pass(call, self.pointer, self.batch.batch)
        if code:
            raise SlipstreamError(
                f"the drafting head could not be evaluated: llama.cpp returned {code}.", "Use another drafter."
            )

    def logits(self, rows: int) -> Floats:
        """Views the logits of the last pass: [rows, n_vocab of the target]."""
        logits = rows_at(C.llama_get_logits(self.pointer), rows, self._logits_width)
        return logits[:, : self._target.abilities.n_vocab]

    def features(self, rows: int) -> Floats:
        """Views the features of the last pass: [rows, width]."""
        return rows_at(SYMBOLS.get_features(self.pointer), rows, self._width)

    def cut(self, length: int) -> None:
        """Drops the cells of all sequences from position ``length`` on."""
        C.llama_memory_seq_rm(self.memory, -1, length, -1)

    def close(self) -> None:
        if self.pointer:
            C.llama_free(self.pointer)
            self.pointer = None


def pointer_to(rows: Floats) -> Any:
    """A C pointer to contiguous floats."""
    return rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
