"""How a llama.cpp context is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from llama_cpp import llama_cpp as C

from slipstream.models.fit_need import pass_tokens
from slipstream.models.runtime.library import physical_cores

KvType = Literal["f32", "f16", "q8_0"]
KV_TYPES: Final[dict[KvType, int]] = {"f32": 0, "f16": 1, "q8_0": 8}  # ggml_type


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How a context is opened.

    Attributes:
        n_ctx: Tokens that it holds; 0 for what the model was trained on, 8,192 at most.
        max_rows: Most rows of one evaluation.
        max_leaves: Most leaves of a tree.
        kv: Type of the KV cache.
        flash: Flash attention on, off, or None for llama.cpp's choice.
        scores: Whether that choice is off: on many processors attention is faster where its scores are written down.
            A KV cache of Q8_0 is read by flash attention alone.
        same_text: Keep the cells in plain decoding's order: a path that was not first in its batch is read again.
        threads: Threads; 0 for the physical cores.
        rollback: Rows that a recurrent or hybrid model takes back. It keeps a copy of its state for each, in a large
            model 50 MB; 8 is as deep as chains are drafted.
        borrow: Whether a GPU that holds no layers computes large passes with weights that it is lent.
    """

    n_ctx: int = 0
    max_rows: int = 64
    max_leaves: int = 16
    kv: KvType = "f16"
    flash: bool | None = None
    scores: bool = False
    same_text: bool = False
    threads: int = 0
    rollback: int = 8
    borrow: bool = True

    def params(self, n_ctx: int, recurrent: bool = False) -> Any:
        """Fills in llama.cpp's parameters.

        Args:
            n_ctx: Tokens that the context holds.
            recurrent: Whether the model is recurrent or hybrid: it has a state for each sequence and takes chains only.
        """
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx
        flash = False if self.flash is None and self.scores and self.kv != "q8_0" else self.flash
        params.n_batch = params.n_ubatch = pass_tokens(flash is not False)
        params.n_seq_max = 1 if recurrent else max(1, self.max_leaves)
        params.n_rs_seq = self.rollback if recurrent else 0  # llama.cpp makes it 0 where a model cannot
        params.n_outputs_max = params.n_outputs_max_per_seq = max(self.max_rows, params.n_seq_max)
        params.kv_unified = True
        params.op_offload = self.borrow
        params.swa_full = True  # cells outside a sliding window are kept: trees share cells, and a chat may be cut back
        params.pooling_type = C.LLAMA_POOLING_TYPE_NONE
        params.type_k = params.type_v = KV_TYPES[self.kv]
        params.flash_attn_type = -1 if flash is None else int(flash)
        params.n_threads = params.n_threads_batch = self.threads or physical_cores()
        return params
