"""The interface of a model with a KV cache that evaluates token trees, and the options of llama.cpp's context."""

from __future__ import annotations

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
    """One chunk of a prompt that has just been read.

    Attributes:
        tokens: The chunk's tokens.
        done: Number of prompt tokens in the KV cache so far.
        total: Number of tokens of the prompt.
        hidden: The requested hidden points, each [len(tokens), n_embd].
    """

    tokens: Sequence[Token]
    done: int
    total: int
    hidden: Mapping[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prefill:
    """The result of a prefill.

    Attributes:
        reused: Number of tokens that were already in the KV cache.
        decoded: Number of tokens that had to be read.
        complete: False if it was cancelled; the tokens read so far stay in the cache.
    """

    reused: int
    decoded: int
    complete: bool


class Target(Protocol):
    """A model with a KV cache that evaluates trees.

    Between calls, the cache holds committed tokens only. A generation step calls ``evaluate``, then ``keep``.
    """

    @property
    def abilities(self) -> Abilities: ...

    @property
    def tokens(self) -> Sequence[Token]:
        """The committed tokens, in the cache or queued by ``feed``."""

    def request(self, points: frozenset[int], rows: int = 1) -> None:
        """Chooses the hidden points of all later evaluations and prefill chunks.

        Args:
            points: See ``Abilities.hidden``.
            rows: Minimum rows of an evaluation, if there are ``Abilities.widths``: passes of equal size reuse a graph.
        """

    def prepare_drafts(self) -> None:
        """Prepares to roll back drafted tokens, if it was opened without that; the cache keeps its tokens."""

    def use_masks(self, masks: Floats) -> None:
        """Sets the mask vectors [k, n_embd], which probes of a tree use under the ids n_vocab to n_vocab + k - 1."""

    def prefill(
        self,
        tokens: Sequence[Token],
        on_chunk: Callable[[PrefillChunk], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Prefill:
        """Makes the cache hold exactly ``tokens``, reusing the prefix that it already has."""

    def feed(self, tokens: Sequence[Token]) -> None:
        """Commits a few tokens; the next evaluation decodes them as its first rows."""

    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        """Evaluates ``last`` and the tree below it in one pass."""

    def keep(self, path: Sequence[int]) -> None:
        """Commits ``last`` and the nodes of ``path`` (a path from the root), and drops the other rows."""

    def rewind(self, length: int) -> None:
        """Drops every token from index ``length`` on."""

    def reset(self) -> None:
        """Drops every token, and zeroes the memory that held them."""

    def save(self) -> bytearray:
        """Returns the cache's state; only the same build and model can restore it."""

    def restore(self, state: bytearray, tokens: Sequence[Token]) -> None:
        """Replaces the cache with a saved state of ``tokens``."""

    def close(self) -> None:
        """Frees the memory; the target must not be used after."""


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Options of a context.

    Attributes:
        n_ctx: Its length in tokens; 0 for the model's training length, at most ``DEFAULT_CONTEXT``.
        max_rows: Maximum rows of one evaluation.
        max_leaves: Maximum leaves of a tree.
        kv: Type of the KV cache.
        flash: Flash attention on, off, or None for llama.cpp's choice.
        scores: Whether ``flash=None`` turns flash attention off, which is often faster on a CPU. A quantized KV cache
            ignores this.
        same_text: Whether to keep the cells in plain decoding's order; accepted nodes outside a tree's first path are
            then decoded again.
        threads: Number of threads; 0 for one per physical core.
        rollback: Rows that a recurrent or hybrid model can roll back. It keeps a copy of its state for each, 50 MB in a
            large model; drafted chains have at most 8 tokens.
        borrow: llama.cpp's ``op_offload``: whether a GPU computes large passes with weights copied to it.
        widths: See ``Abilities.widths``; None for ``WIDTHS`` if the model's devices keep graphs, else none.
        rope: Scaling of positions; None to keep the file's.
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
    widths: tuple[int, ...] | None = None
    rope: RopeScaling | None = None

    def params(self, n_ctx: int, recurrent: bool = False) -> Any:
        """Fills in llama.cpp's parameters.

        Args:
            recurrent: Whether the model is recurrent or hybrid; then it takes chains only.
        """
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
        params.type_k = params.type_v = KV_TYPES[self.kv]
        params.flash_attn_type = -1 if flash is None else int(flash)
        params.n_threads = params.n_threads_batch = self.threads or physical_cores()
        if self.rope:
            params.rope_scaling_type = _ROPE_TYPES[self.rope.kind]
            params.rope_freq_scale = 1 / self.rope.factor
            params.yarn_orig_ctx = self.rope.trained
        return params
