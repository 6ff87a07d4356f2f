"""A context that guesses a block of tokens in one pass: a DFlash, DFlash2 or DSpark head, run by llama.cpp.

Its cache holds the target's features of the text. A block is the last token followed by masks; its rows see the whole
cache and one another, and are dropped after the pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.models.heads.block_head import BlockHead
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.head_context import ROWS, HeadContext
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Floats, Token


class BlockOutput(NamedTuple):
    """The result of a block, valid until the next pass; row i stands for the block's row i.

    Attributes:
        logits: [rows, n_vocab]; no rows for a head with a selector.
        features: [rows, n_embd]: the selector's scores, or a DSpark head's confidence.
    """

    logits: Floats
    features: Floats


class BlockContext:
    """A head's context beside the target's: it reads the target's features of the text and guesses the next tokens.

    Positions are this context's own: the n-th feature has position n, wherever it is in the text. RoPE depends on
    differences of positions only, so a gap in the text only costs some accuracy.

    Attributes:
        head: The head's metadata.
        length: Number of features in its cache.
    """

    def __init__(self, target: LlamaTarget, model: LlamaModel, head: BlockHead) -> None:
        """Opens a context.

        Args:
            target: The target, which lends its embedding and its vocabulary matrix, and sets the number of threads.
            model: The head's weights, which ``unfit_block`` has found to fit the target.
            head: The head's metadata.

        Raises:
            SlipstreamError: If there is not enough memory for it.
        """
        self.head, self.length = head, 0
        params = ContextOptions(max_rows=ROWS, max_leaves=1, scores=target.scores, rope=target.rope).params(
            target.abilities.n_ctx + head.block
        )
        params.attention_type = C.LLAMA_ATTENTION_TYPE_NON_CAUSAL
        # a selector's graph computes no logits, and outputs its scores for every row
        self._context = HeadContext(target, model.pointer, params, model.n_embd, masked=not head.selected)

    def inject(self, features: Floats) -> None:
        """Appends the target's features of the text: [positions, joined width].

        Raises:
            SlipstreamError: If a pass fails; the caller must ``rewind`` then.
        """
        for start in range(0, len(features), ROWS):
            rows = np.ascontiguousarray(features[start : start + ROWS], np.float32)
            self._context.batch.vectors(rows, self.length, self.head.sections)
            self._context.run()
            self.length += len(rows)

    def draft(self, last: Token) -> BlockOutput:
        """Runs a block after the text.

        Args:
            last: The text's last token, whose own feature the target has yet to compute.

        Raises:
            SlipstreamError: If the pass fails.
        """
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
        """Drops the features from ``length`` on."""
        self._context.cut(length)
        self.length = min(length, self.length)

    def close(self) -> None:
        self._context.close()
