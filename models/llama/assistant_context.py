"""A context on a Gemma 4 assistant: MTP layers that keep no cells of their own but read the target's KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import MTP, HeadOutput
from slipstream.models.llama.head_context import ROWS, HeadContext, pointer_to
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import KV_TYPES
from slipstream.models.types import PACKED, Floats, Token

_BRANCHES: Final = 4


class AssistantContext:
    """Reads pairs of a token and the feature of the position before it, as ``FeatureContext`` does.

    The text is already in the target's cache, so only the pair whose output is wanted is run. A drafted pair sees the
    text and itself, at the position of the last token; pairs of one level do not see one another.

    Attributes:
        leaves: Limit of rows in one level of a draft.
        length: Number of pairs of the text.
    """

    def __init__(self, target: LlamaTarget, model: LlamaModel) -> None:
        """Opens a context; llama.cpp empties the target's cache for it, so the target reads its text again.

        Args:
            target: A Gemma 4 model.
            model: The assistant, which ``unfit_mtp`` has found to fit it.

        Raises:
            SlipstreamError: If there is not enough memory for it.
        """
        target.rewind(0)
        self.length = 0
        self.leaves = max(1, min(_BRANCHES, target.abilities.max_leaves))
        self._target, self._features = target, np.zeros((ROWS, target.abilities.n_embd), np.float32)
        options = target.options  # those of the shared cache: it has no cache of its own
        params = replace(options, flash=True if options.kv in PACKED else options.flash).params(target.abilities.n_ctx)
        params.type_k = params.type_v = KV_TYPES["f16"]
        params.ctx_type = MTP
        self._context = HeadContext(target, model.pointer, params, target.abilities.n_embd)

    def append(self, tokens: Sequence[Token], features: Floats, *, answer: bool) -> HeadOutput | None:
        """Takes pairs of the text; see ``FeatureContext.append``. ``answer`` returns the last one's output."""
        self.length += len(tokens)
        return self._pass(tokens[-1:], features[-1:]) if answer else None

    def grow(self, parents: Sequence[int], tokens: Sequence[Token], features: Floats) -> HeadOutput:
        """Reads one level of drafted pairs; see ``FeatureContext.grow``."""
        return self._pass(tokens, features)

    def rewind(self, length: int) -> None:
        """Drops the pairs from ``length`` on."""
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
