"""A context whose rows are pairs of a token and a feature: an EAGLE-3 head, or the MTP layer of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.head_context import ROWS, HeadContext, pointer_to
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Floats, Token

MTP: Final = 1  # llama_context_type


class HeadOutput(NamedTuple):
    """The result of a pass, valid until the next one.

    Attributes:
        logits: [rows, n_vocab], for the token that follows each row's token.
        features: [rows, width], the feature to pair with the token that is drafted from the row's logits.
    """

    logits: Floats
    features: Floats


class FeatureContext:
    """A head's context beside the target's: it reads pairs of a token and the feature of the position before it.

    Positions are this context's own: the n-th pair of sequence 0 has position n, wherever the pair is in the text.
    RoPE depends on differences of positions only, so a gap in the text only costs some accuracy.

    Attributes:
        leaves: Limit of rows in one level of a draft.
        length: Number of pairs of the text, all in sequence 0; drafted pairs follow them.
    """

    def __init__(self, target: LlamaTarget, head: LlamaModel | None = None, leaves: int = 4) -> None:
        """Opens a context.

        Args:
            target: The target, which lends its embedding and its vocabulary matrix, and sets the number of threads.
            head: An EAGLE-3 head or MTP layers in a file, or None for the target's own MTP layer. The caller has
                checked that it fits the target; one that does not fit crashes the process in a later pass.
            leaves: Limit of branches of a draft; the target's own limit of leaves also applies.

        Raises:
            SlipstreamError: If there is not enough memory for it.
        """
        model = head.pointer if head else C.llama_get_model(target.context)
        self.leaves = max(1, min(leaves, target.abilities.max_leaves))
        width = head.n_embd if head else target.abilities.n_embd
        options = ContextOptions(max_rows=ROWS, max_leaves=self.leaves, scores=target.scores, rope=target.rope)
        params = options.params(target.abilities.n_ctx)
        params.ctx_type = MTP if head is None or head.mtp else 0
        self._context = HeadContext(target, model, params, width)
        if head is None:  # an EAGLE-3 head has layers of its own, of the same names
            target.model.adapt(self._context.pointer)
        self._batch = self._context.batch
        self._features = np.zeros((ROWS, width), np.float32)
        self._features_pointer = pointer_to(self._features)
        self.length = 0
        self._shared = [0] * self.leaves  # positions that each sequence shares with sequence 0
        self._level = [0]  # the sequence of each row in the last drafted level; sequence 0 before the first level
        self._depth = 0  # number of drafted levels

    def encode(self, rows: Floats) -> Floats:
        """Narrows the target's joined hidden states to features: [rows, joined width] to [rows, width]."""
        parts: list[Floats] = []
        for start in range(0, len(rows), ROWS):
            chunk = np.ascontiguousarray(rows[start : start + ROWS], np.float32)
            self._batch.prompt([0] * len(chunk), self.length, output_all=True)  # llama.cpp checks the positions
            self._batch.batch.token, self._batch.batch.embd = None, pointer_to(chunk)
            self._run(C.llama_encode)
            parts.append(self._context.features(len(chunk)).copy())
        return np.concatenate(parts)

    def append(self, tokens: Sequence[Token], features: Floats, *, answer: bool) -> HeadOutput | None:
        """Reads pairs into sequence 0.

        Args:
            tokens: One per pair.
            features: [pairs, width], each of the position before its token.
            answer: Whether to return the output; then at most ``ROWS`` pairs.

        Returns:
            The output of each pair; None without ``answer``.
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
        """Reads one level of drafted pairs, each the child of a row in the last level; the first follows the text.

        The pairs of the text and of the draft together must fit the target's context.

        Every branch has its own sequence. The first child of a row continues in the row's sequence; each further child
        takes an unused sequence, to which the row's cells are copied.

        Args:
            parents: For each pair, the row of the last level that it follows; 0 in the first level.
            tokens: The drafted tokens, at most as many as there are leaves.
            features: [pairs, width], the output features of the parents' rows.

        Returns:
            The output of each pair.
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
        """Drops the pairs from ``length`` on, and all drafted pairs."""
        self._context.cut(length)
        self.length = min(length, self.length)
        self._shared = [min(shared, self.length) for shared in self._shared]
        self._level, self._depth = [0], 0

    def close(self) -> None:
        self._context.close()

    def _copy(self, source: int, into: int) -> None:
        """Copies all cells of a sequence to another."""
        if self._depth:
            C.llama_memory_seq_rm(self._context.memory, into, self.length, -1)
        if into and self._shared[into] < self.length:
            C.llama_memory_seq_cp(self._context.memory, 0, into, self._shared[into], self.length)
            self._shared[into] = self.length
        if self._depth:
            C.llama_memory_seq_cp(self._context.memory, source, into, self.length, self.length + self._depth)

    def _pass(self, features: Floats) -> HeadOutput:
        """Runs the batch of pairs and returns a view of its output."""
        self._read(features)
        return HeadOutput(self._context.logits(len(features)), self._context.features(len(features)))

    def _read(self, features: Floats) -> None:
        """Runs the batch of pairs."""
        self._features[: len(features)] = features
        self._batch.batch.embd = self._features_pointer  # llama.cpp takes tokens and features in one batch
        self._run(C.llama_decode)

    def _run(self, call: Any) -> None:
        """Runs the batch; rows that were processed before a failure are dropped."""
        try:
            self._context.run(call)
        except SlipstreamError:
            self.rewind(self.length)
            raise
