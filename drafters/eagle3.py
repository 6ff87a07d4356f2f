"""Drafter ``eagle3``: one layer on the target's own features, run by llama.cpp.

Source: EAGLE-3 (Li et al., arXiv 2503.01840; github.com/SafeAILab/EAGLE), driven as in llama.cpp's
``common/speculative.cpp``.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from slipstream.drafters.base import Drafter
from slipstream.drafters.feature_drafter import FeatureDrafter
from slipstream.drafters.resources import LAYER_CALLS, Method, Resources, needs_heads
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.check import target_layers, unfit
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import FeatureContext
from slipstream.models.llama.model import LlamaModel

NAME: Final = "eagle3"


def open_eagle3(path: Path, target: LlamaTarget) -> FeatureDrafter:
    """Loads a head, which projects the concatenated inputs of three target layers to one feature.

    Args:
        path: The head's GGUF, which ``unfit`` has found to fit the target.
    """
    with ExitStack() as opened:
        model = opened.enter_context(closing(LlamaModel(path, placement=target.placement.beside())))
        head = FeatureContext(target, model)
        points = target_layers(model.header)
        return FeatureDrafter(NAME, head, target, points, encode=head.encode, opened=opened.pop_all())


def _lacks(resources: Resources) -> str:
    missing = needs_heads(NAME)(resources)
    if missing:
        return missing
    return unfit(read_header(resources.heads[NAME]), resources.abilities)


def _make(resources: Resources) -> Drafter:
    assert resources.llama is not None  # _lacks has checked it
    return open_eagle3(resources.heads[NAME], resources.llama)


METHOD: Final = Method(
    NAME,
    _make,
    lacks=_lacks,
    about="a trained layer drafts from the model's own features",
    auto=True,
    calls=LAYER_CALLS,
)
