"""Drafter ``eagle3``: one layer on the target's own features, run by llama.cpp.

Source: EAGLE-3 (Li et al., arXiv 2503.01840; github.com/SafeAILab/EAGLE), driven as in llama.cpp's
``common/speculative.cpp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from slipstream.drafters.base import Drafter
from slipstream.drafters.feature_drafter import FeatureDrafter
from slipstream.drafters.parts import Method, Parts, needs_heads
from slipstream.models.eagle_check import target_layers, unfit
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import read_header
from slipstream.models.runtime.features import FeatureContext
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.runtime.model import LlamaModel
from slipstream.models.types import Floats


class Eagle(FeatureDrafter):
    """Joins the inputs of three layers of the target to a feature, and drafts from features and tokens."""

    name: ClassVar[str] = "eagle3"

    def __init__(self, path: Path, target: LlamaTarget) -> None:
        """Loads a head.

        Args:
            path: The head's GGUF, which ``unfit`` has found to fit the target.
            target: What it drafts for; it must live longer than this drafter.

        Raises:
            SlipstreamError: If the file cannot be loaded, or there is no memory.
        """
        self._model = LlamaModel(path)
        try:
            head = FeatureContext(target, self._model)
        except SlipstreamError:
            self._model.close()
            raise
        super().__init__(head, target, target_layers(self._model.header))

    def close(self) -> None:
        """Frees the head and its weights."""
        super().close()
        self._model.close()

    def _features(self, joined: Floats) -> Floats:
        return self._head.encode(joined)


def _lacks(parts: Parts) -> str:
    missing = needs_heads(Eagle.name)(parts)
    if missing:
        return missing
    try:
        return unfit(read_header(parts.heads[Eagle.name]), parts.abilities)
    except SlipstreamError as error:
        return f"its eagle3 head cannot be read: {error.title}"


def _make(parts: Parts) -> Drafter:
    assert parts.llama is not None  # _lacks has said so
    return Eagle(parts.heads[Eagle.name], parts.llama)


METHOD = Method(Eagle.name, _make, lacks=_lacks, about="a trained layer drafts from the model's own features")
