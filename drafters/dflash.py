"""Drafter ``dflash``: a block of tokens guessed in one pass from the target's own features, run by llama.cpp.

Sources: DFlash (arXiv 2602.06036), whose positions are independent of each other given the text, and DFlash2, whose
selector scores each candidate of a position after each candidate of the one before (llama.cpp PR 27342).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from slipstream.drafters.block_drafter import BlockDrafter, Following, Guess, method_of_block, open_block
from slipstream.models.heads.block_head import BlockHead, BlockMethod, block_head
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import BlockOutput
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import Token

NAME: Final[BlockMethod] = "dflash"


def independent(head: BlockHead) -> Following:
    """Reads a block whose rows are the logits of their positions, independent of the tokens before them."""

    def following(block: BlockOutput, path: Sequence[Token]) -> Guess | None:
        row = head.first + len(path)
        return Guess(block.logits[row]) if row < len(block.logits) else None

    return following


def selected(head: BlockHead, n_vocab: int) -> Following:
    """Reads a DFlash2 block: the scores of a row's candidates depend on the candidate before them.

    A row has k unordered candidates, then k scores for each candidate of the row before; in the first row these are
    all equal.
    """
    k, logits = head.choices, np.full(n_vocab, -np.inf, np.float32)
    scored = np.empty(0, np.int64)

    def following(block: BlockOutput, path: Sequence[Token]) -> Guess | None:
        nonlocal scored
        row = head.first + len(path)
        if row >= len(block.features):
            return None
        before = 0
        if path:
            (places,) = (block.features[row - 1, :k] == path[-1]).nonzero()
            if not len(places):
                return None
            before = int(places[0])
        ids = block.features[row, :k].astype(np.int64)
        logits[scored] = -np.inf
        scored = ids[(ids >= 0) & (ids < n_vocab)]
        logits[scored] = block.features[row, k * (1 + before) : k * (2 + before)][(ids >= 0) & (ids < n_vocab)]
        return Guess(logits)

    return following


def open_dflash(path: Path, target: LlamaTarget) -> BlockDrafter:
    """Loads a DFlash or DFlash2 head; see ``open_block``."""

    def following(model: LlamaModel) -> Following:
        head = block_head(model.header)
        return selected(head, target.abilities.n_vocab) if head.selected else independent(head)

    return open_block(NAME, path, target, following)


METHOD: Final = method_of_block(NAME, "a trained head guesses a block of tokens in one pass", open_dflash)
