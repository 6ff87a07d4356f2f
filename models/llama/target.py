"""The interface of a model with a KV cache that evaluates token trees, and the options of llama.cpp's context."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from llama_cpp import llama_cpp as C

from slipstream.models.gguf.rope import RopeKind, RopeScaling
from slipstream.models.llama.library import physical_cores
from slipstream.models.types import (
    EMPTY_TREE,
    PACKED,
    Abilities,
    Evaluation,
    Floats,
    KvType,
    Token,
    TokenTree,
    pass_tokens,
)

WIDTHS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Pass sizes, in rows, where a pass like the one before is cheaper, see ``Placement.keeps_graphs``."""
KV_TYPES: Final[dict[KvType, int]] = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2}  # ggml_type
_ROPE_TYPES: Final[dict[RopeKind, int]] = {"none": 0, "linear": 1, "yarn": 2}  # llama_rope_scaling_type


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One chunk of a prompt that has just been read."""

    tokens: Sequence[Token]
    done: int  # number of prompt tokens in the KV cache so far
    total: int  # number of tokens of the prompt
    hidden: Mapping[int, Floats] = field(default_factory=dict)  # the requested hidden points, [len(tokens), n_embd]


@dataclass(frozen=True, slots=True)
class Prefill:
    """The result of a prefill."""

    reused: int  # number of tokens that were already in the KV cache
    decoded: int  # number of tokens that had to be read
    complete: bool  # False if it was cancelled; the tokens read so far stay in the cache


class Target(Protocol):
    """A model with a KV cache that evaluates trees; ``LlamaTarget`` describes the methods.

    Between calls, the cache holds committed tokens only. A generation step calls ``evaluate``, then ``keep``.
    """

    @property
    def abilities(self) -> Abilities: ...
    @property
    def tokens(self) -> Sequence[Token]: ...
    def request(self, points: frozenset[int], rows: int = 1) -> None: ...
    def prepare_drafts(self) -> None: ...
    def use_masks(self, masks: Floats) -> None: ...
    def prefill(
        self,
        tokens: Sequence[Token],
        on_chunk: Callable[[PrefillChunk], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prefill: ...
    def feed(self, tokens: Sequence[Token]) -> None: ...
    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation: ...
    def keep(self, path: Sequence[int]) -> None: ...
    def rewind(self, length: int) -> None: ...
    def reset(self) -> None: ...
    def save(self) -> bytearray: ...
    def restore(self, state: bytearray, tokens: Sequence[Token]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Options of a context."""

    n_ctx: int = 0  # its length in tokens; 0 for the model's training length, at most ``DEFAULT_CONTEXT``
    max_rows: int = 64  # maximum rows of one evaluation
    max_leaves: int = 16  # maximum leaves of a tree
    kv: KvType = "f16"
    values: KvType | None = None  # the type of the cache's values, if it is not ``kv``
    flash: bool | None = None  # flash attention on, off, or None for llama.cpp's choice
    # whether ``flash=None`` turns flash attention off, often faster on a CPU; a quantized KV cache ignores this
    scores: bool = False
    # whether to keep the cells in plain decoding's order; accepted nodes outside a tree's first path are decoded again
    same_text: bool = False
    threads: int = 0  # 0 for one per physical core
    # rows that a recurrent or hybrid model can roll back; it keeps a copy of its state for each, 50 MB in a large model
    rollback: int = 8
    borrow: bool = True  # llama.cpp's ``op_offload``: whether a GPU computes large passes with weights copied to it
    # see ``Abilities.widths``; None for ``WIDTHS`` if the model's devices keep graphs, else none
    widths: tuple[int, ...] | None = None
    rope: RopeScaling | None = None  # scaling of positions; None to keep the file's

    def params(self, n_ctx: int, recurrent: bool = False) -> Any:
        """Fills in llama.cpp's parameters; a ``recurrent`` model, also a hybrid one, takes chains only."""
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx
        flash = False if self.flash is None and self.scores and self.kv not in PACKED else self.flash
        params.n_batch = params.n_ubatch = pass_tokens(flash is not False)
        params.n_seq_max = 1 if recurrent else max(1, self.max_leaves)
        params.n_rs_seq = self.rollback if recurrent else 0  # llama.cpp sets it to 0 if the model cannot roll back
        params.n_outputs_max = params.n_outputs_max_per_seq = max(self.max_rows, params.n_seq_max)
        params.kv_unified = True
        params.op_offload = self.borrow
        params.swa_full = True  # cells outside a sliding window are kept: trees share cells, and a chat may be cut back
        params.pooling_type = C.LLAMA_POOLING_TYPE_NONE
        params.type_k, params.type_v = KV_TYPES[self.kv], KV_TYPES[self.values or self.kv]
        params.flash_attn_type = -1 if flash is None else int(flash)
        params.n_threads = params.n_threads_batch = self.threads or physical_cores()
        if self.rope:
            params.rope_scaling_type = _ROPE_TYPES[self.rope.kind]
            params.rope_freq_scale = 1 / self.rope.factor
            params.yarn_orig_ctx = self.rope.trained
        return params
