"""Contexts of drafting heads that read the target's features: EAGLE-3 heads, MTP layers and block heads."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.heads.block_head import BlockHead
from slipstream.models.llama.batch import Batch
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.hidden import SYMBOLS
from slipstream.models.llama.library import pointer_to, rows_at, run_pass, threads_of
from slipstream.models.llama.memory import made_context
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import KV_TYPES, ContextOptions
from slipstream.models.types import PACKED, Floats, Token

ROWS: Final = 64  # maximum rows of one pass; small, since these graphs compute the logits of every row
MTP: Final = 1  # llama_context_type
_ENCODED: Final = 8  # rows that passes of the encoder are padded to, where passes are replayed
_BRANCHES: Final = 4  # maximum branches of a draft; the target's ``max_leaves`` also applies


class HeadContext:
    """A head's context; provides logits, and features, which llama.cpp calls nextn embeddings."""

    def __init__(self, target: LlamaTarget, model: Any, params: Any, width: int, masked: bool = True) -> None:
        """Opens a context on a head that fits the target; otherwise a later pass would crash the process.

        The target provides the weights that the head lacks. With ``masked``, only rows with outputs have features.
        """
        params.n_batch = params.n_ubatch = ROWS
        params.ctx_other = target.context
        self._target, self._width = target, width
        self.pointer = made_context(model, params, "the drafting head", "Use another drafter.")
        self.memory = C.llama_get_memory(self.pointer)
        self.batch = Batch(ROWS, params.n_seq_max)
        self._logits_width = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
        self._threads = params.n_threads
        SYMBOLS.set_features(self.pointer, True, masked)

    def run(self, call: Any = C.llama_decode) -> None:
        """Runs the batch with the target's threads; if it fails, some of its rows may already be in the cache."""
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
        C.llama_memory_seq_rm(self.memory, -1, length, -1)

    def close(self) -> None:
        if self.pointer:
            C.llama_free(self.pointer)
            self.pointer = None


class HeadOutput(NamedTuple):
    """The result of a pass, valid until the next one."""

    logits: Floats  # [rows, n_vocab], for the token that follows each row's token
    features: Floats  # [rows, width], to pair with the token that is drafted from the row's logits


class FeatureContext:
    """A head's context: it reads pairs of a token and the target's feature of the position before it.

    Positions count pairs: the n-th pair of sequence 0 has position n, even if text before it was skipped. RoPE depends
    only on differences of positions, so a gap costs only some accuracy.
    """

    def __init__(self, target: LlamaTarget, head: LlamaModel | None = None) -> None:
        """Opens a context on a head in a file that fits the target, or on the target's own MTP layer."""
        model = head.pointer if head else C.llama_get_model(target.context)
        self.leaves = max(1, min(_BRANCHES, target.abilities.max_leaves))  # maximum rows in one level of a draft
        width = head.n_embd if head else target.abilities.n_embd
        options = ContextOptions(max_rows=ROWS, max_leaves=self.leaves, scores=target.scores, rope=target.rope)
        params = options.params(target.abilities.n_ctx)
        params.ctx_type = MTP if head is None or head.mtp else 0
        self._context = HeadContext(target, model, params, width)
        # an encoder and a decoder in turns would change the graph of a context with every pass
        self._encoder, self._encoded = self._context, 1
        if head and not head.mtp and target.abilities.replays:
            params.n_ctx = params.n_batch
            self._encoder, self._encoded = HeadContext(target, model, params, width), _ENCODED
        if head is None:  # LoRA adapters must not change an EAGLE-3 head's own layers of the same names
            target.model.adapt(self._context.pointer)
        self._batch = self._context.batch
        self._features = np.zeros((ROWS, width), np.float32)
        self._features_pointer = pointer_to(self._features)
        self.length = 0  # number of pairs of the text, all in sequence 0; drafted pairs follow them
        self._shared = [0] * self.leaves  # positions that each sequence shares with sequence 0
        self._level = [0]  # the sequence of each row in the last drafted level; sequence 0 before the first level
        self._depth = 0  # number of drafted levels

    def encode(self, rows: Floats) -> Floats:
        """Projects the target's concatenated hidden states to features: [rows, joined width] to [rows, width]."""
        parts: list[Floats] = []
        for start in range(0, len(rows), ROWS):
            count = min(ROWS, len(rows) - start)
            chunk = np.zeros((-(-count // self._encoded) * self._encoded, rows.shape[1]), np.float32)
            chunk[:count] = rows[start : start + count]
            batch, at = self._encoder.batch, 0 if self._encoder is not self._context else self.length
            batch.prompt([0] * len(chunk), at, output_all=True)  # llama.cpp checks the positions
            batch.batch.token, batch.batch.embd = None, pointer_to(chunk)
            self._encoder.run(C.llama_encode)
            parts.append(self._encoder.features(len(chunk))[:count].copy())
        return np.concatenate(parts)

    def append(self, tokens: Sequence[Token], features: Floats, *, answer: bool) -> HeadOutput | None:
        """Reads pairs into sequence 0.

        Args:
            features: [pairs, width], the feature of the position before each token.
            answer: Whether to return the output; then at most ``ROWS`` pairs.
        """
        output = None
        for start in range(0, len(tokens), ROWS):
            run = tokens[start : start + ROWS]
            self._batch.prompt(run, self.length, output_all=answer)
            if answer:
                output = self._pass(features[start : start + ROWS])
            else:
                self._read(features[start : start + ROWS])
            self.length += len(run)
        return output

    def grow(self, parents: Sequence[int], tokens: Sequence[Token], features: Floats) -> HeadOutput:
        """Reads the next level of drafted pairs; each pair is the child of a row in the previous level.

        The pairs of the text and of the draft together must fit the target's context.

        Every branch has its own sequence. The first child of a row continues in the row's sequence; each further child
        takes an unused sequence, to which the row's cells are copied.

        Args:
            parents: For each pair, the row of the previous level that it follows; 0 in the first level.
            tokens: The drafted tokens, at most ``leaves``.
            features: [pairs, width], the output features of the parents' rows.
        """
        alive = {self._level[parent] for parent in parents}
        free = [sequence for sequence in range(len(self._shared)) if sequence not in alive]
        sequences: list[int] = []
        for parent in parents:
            sequence = self._level[parent]
            if sequence in sequences:
                sequence = free.pop()
                self._copy(self._level[parent], sequence)
            sequences.append(sequence)
        self._batch.beside(tokens, self.length + self._depth, sequences)
        output = self._pass(features)
        self._level, self._depth = sequences, self._depth + 1
        return output

    def rewind(self, length: int) -> None:
        self._context.cut(length)
        self.length = min(length, self.length)
        self._shared = [min(shared, self.length) for shared in self._shared]
        self._level, self._depth = [0], 0

    def close(self) -> None:
        self._encoder.close()
        self._context.close()

    def _copy(self, source: int, into: int) -> None:
        if self._depth:
            C.llama_memory_seq_rm(self._context.memory, into, self.length, -1)
        if into and self._shared[into] < self.length:
            C.llama_memory_seq_cp(self._context.memory, 0, into, self._shared[into], self.length)
            self._shared[into] = self.length
        if self._depth:
            C.llama_memory_seq_cp(self._context.memory, source, into, self.length, self.length + self._depth)

    def _pass(self, features: Floats) -> HeadOutput:
        self._read(features)
        return HeadOutput(self._context.logits(len(features)), self._context.features(len(features)))

    def _read(self, features: Floats) -> None:
        self._features[: len(features)] = features
        self._batch.batch.embd = self._features_pointer  # llama.cpp takes tokens and features in one batch
        try:
            self._context.run()
        except SlipstreamError:
            self.rewind(self.length)  # drops the rows that were processed before the failure
            raise


class AssistantContext:
    """A context on a Gemma 4 assistant: MTP layers without their own KV cache, which read the target's.

    It reads pairs of a token and the feature of the position before it, as ``FeatureContext`` does.

    The text is already in the target's cache, so only pairs whose output is needed are run. A drafted pair attends to
    the text and itself, at the position of the last token; pairs of one level do not attend to one another.
    """

    def __init__(self, target: LlamaTarget, model: LlamaModel) -> None:
        """Opens a context on an assistant, which ``unfit_mtp`` has found to fit.

        llama.cpp empties the target's cache for it, so the target must read its text again.
        """
        target.rewind(0)
        self.length = 0
        self.leaves = max(1, min(_BRANCHES, target.abilities.max_leaves))
        self._target, self._features = target, np.zeros((ROWS, target.abilities.n_embd), np.float32)
        options = target.options  # the cache is the target's, so its options apply
        params = replace(options, flash=True if options.kv in PACKED else options.flash).params(target.abilities.n_ctx)
        params.type_k = params.type_v = KV_TYPES["f16"]
        params.ctx_type = MTP
        self._context = HeadContext(target, model.pointer, params, target.abilities.n_embd)

    def append(self, tokens: Sequence[Token], features: Floats, *, answer: bool) -> HeadOutput | None:
        """Counts pairs of the text; see ``FeatureContext.append``. With ``answer``, returns the last pair's output."""
        self.length += len(tokens)
        return self._pass(tokens[-1:], features[-1:]) if answer else None

    def grow(self, parents: Sequence[int], tokens: Sequence[Token], features: Floats) -> HeadOutput:
        return self._pass(tokens, features)

    def rewind(self, length: int) -> None:
        self.length = min(length, self.length)

    def close(self) -> None:
        self._context.close()

    def _pass(self, tokens: Sequence[Token], features: Floats) -> HeadOutput:
        count, batch = len(tokens), self._context.batch
        batch.beside(tokens, self._target.position, [0] * count)
        self._features[:count] = features
        batch.batch.embd = pointer_to(self._features)
        self._context.run()
        return HeadOutput(self._context.logits(count), self._context.features(count))


class BlockOutput(NamedTuple):
    """The result of a block, one row per token of the block; valid until the next pass."""

    logits: Floats  # [rows, n_vocab]; no rows for a head with a selector
    features: Floats  # [rows, n_embd]: the selector's scores, or a DSpark head's confidence


class BlockContext:
    """A context on a DFlash, DFlash2 or DSpark head, which drafts a block of tokens in one pass.

    Its cache holds the target's features of the text. A block is the last token followed by masks; its rows attend to
    the whole cache and to one another, and are dropped after the pass.

    Positions count features: the n-th feature has position n, even if text before it was skipped. RoPE depends only on
    differences of positions, so a gap costs only some accuracy.
    """

    def __init__(self, target: LlamaTarget, model: LlamaModel, head: BlockHead) -> None:
        """Opens a context on a head, which ``unfit_block`` has found to fit the target."""
        self.head, self.length = head, 0  # ``length``: number of features in its cache
        params = ContextOptions(max_rows=ROWS, max_leaves=1, scores=target.scores, rope=target.rope).params(
            target.abilities.n_ctx + head.block
        )
        params.attention_type = C.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        # the graph of a head with a selector computes no logits; it outputs the selector's scores for every row
        self._context = HeadContext(target, model.pointer, params, model.n_embd, masked=not head.selected)

    def inject(self, features: Floats) -> None:
        """Appends the target's features of the text: [positions, joined width]; if it fails, call ``rewind``."""
        for start in range(0, len(features), ROWS):
            rows = np.ascontiguousarray(features[start : start + ROWS], np.float32)
            self._context.batch.vectors(rows, self.length, self.head.sections)
            self._context.run()
            self.length += len(rows)

    def draft(self, last: Token) -> BlockOutput:
        """Runs a block after the text; the target has not computed the feature of its last token yet."""
        head = self.head
        tokens = [last, *[head.mask] * (head.block - 1)]
        self._context.batch.prompt(tokens, self.length, output_all=not head.selected)
        try:
            self._context.run()
        finally:
            self._context.cut(self.length)
        logits = self._context.logits(0 if head.selected else len(tokens))
        return BlockOutput(logits, self._context.features(len(tokens)))

    def rewind(self, length: int) -> None:
        self._context.cut(length)
        self.length = min(length, self.length)

    def close(self) -> None:
        self._context.close()
