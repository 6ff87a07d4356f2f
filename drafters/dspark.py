"""Drafter ``dspark``: a block guessed in one pass, whose positions depend on the token before them, run by llama.cpp.

Source: DSpark (arXiv 2607.05147). It is DFlash with a Markov term: two matrices w1 and w2 add ``w2 . w1[previous]`` to
the logits of a position. llama.cpp adds the term for the greedy path; for other paths this module adds the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.drafters.block_drafter import BlockDrafter, Following, Guess, method_of_block, open_block
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import read_stored, read_tensor
from slipstream.models.heads.block_head import BlockMethod, block_head
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import BlockOutput
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.top_k import NONE, best
from slipstream.models.types import Floats, Token

NAME: Final[BlockMethod] = "dspark"
_CANDIDATES: Final = 32  # best tokens of a position, whose logits are corrected for other paths than the greedy one


class MarkovTerm:
    """The two Markov matrices of a head, kept quantized as in its file."""

    def __init__(self, header: Header) -> None:
        """Reads the matrices."""
        tensors = {tensor.name: tensor for tensor in header.tensors}
        self._tables = [tensors["markov_w1.weight"], tensors["markov_w2.weight"]]
        self._stored = [read_stored(header, table).reshape(table.shape[1], -1) for table in self._tables]
        self._scale = float(read_tensor(header, tensors["markov_w2.scale"])[0]) if "markov_w2.scale" in tensors else 1.0
        self._row_of: NDArray[np.int64] | None = None  # the row of w2 for each token, if it has fewer rows
        if "d2t" in tensors:
            ids = read_tensor(header, tensors["d2t"])
            self._row_of = np.zeros(header.n_rows, np.int64)
            self._row_of[ids] = np.arange(len(ids))

    def moved(self, logits: Floats, instead: Token, before: Token) -> Floats:
        """Corrects a position's logits for the token before it; minus infinity for all but the best tokens.

        Args:
            logits: The logits that llama.cpp computed.
            instead: The previous token that llama.cpp assumed.
            before: The actual previous token.
        """
        ids, values = best(logits, _CANDIDATES, NONE, logits[:0])
        first = self._rows(0, np.array([before, instead], np.int64))
        rows = self._rows(1, ids if self._row_of is None else self._row_of[ids])
        moved = np.full_like(logits, -np.inf)
        moved[ids] = values + self._scale * (rows @ (first[0] - first[1]))
        return moved

    def _rows(self, table: int, ids: NDArray[np.int64]) -> Floats:
        stored = np.ascontiguousarray(self._stored[table][ids])
        kind = gguf.GGMLQuantizationType(self._tables[table].type)
        return np.asarray(gguf.quants.dequantize(stored, kind), np.float32)


def open_dspark(path: Path, target: LlamaTarget) -> BlockDrafter:
    """Loads a DSpark head; see ``open_block``."""

    def following(model: LlamaModel) -> Following:
        head, markov = block_head(model.header), MarkovTerm(model.header)

        def guess(block: BlockOutput, path: Sequence[Token]) -> Guess | None:
            row = head.first + len(path)
            if row >= len(block.logits):
                return None
            logits = block.logits[row]
            if path:
                assumed = int(block.logits[row - 1].argmax())
                if path[-1] != assumed:
                    return Guess(markov.moved(logits, assumed, path[-1]))
            # the head's confidence holds for the greedy path only
            greedy = all(int(block.logits[head.first + at].argmax()) == token for at, token in enumerate(path))
            return Guess(logits, float(block.features[row, 0]) if head.confidence and greedy else None)

        return guess

    return open_block(NAME, path, target, following)


METHOD: Final = method_of_block(NAME, "a trained head guesses a block and how sure it is of it", open_dspark)
