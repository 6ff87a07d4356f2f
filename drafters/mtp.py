"""Drafter ``mtp``: the multi-token prediction layer that a model was trained with, run by llama.cpp.

Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2), driven as in llama.cpp's ``common/speculative.cpp``.
"""

from __future__ import annotations

from typing import Final

from slipstream.drafters.base import Drafter
from slipstream.drafters.feature_drafter import FeatureDrafter
from slipstream.drafters.resources import FEATURE_CALLS, Method, Resources
from slipstream.models.gguf.mtp import without_mtp
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import FeatureContext
from slipstream.models.types import MTP_HIDDEN

NAME: Final = "mtp"


def open_mtp(target: LlamaTarget) -> FeatureDrafter:
    """Opens a second context on the target's weights, for the layer behind the target's last one.

    After the first token the layer feeds on its own output. Its pairs are those of EAGLE-3 without the narrowing;
    llama.cpp counts the place of a pair from its token, which rotates everything by one and changes nothing.

    Raises:
        SlipstreamError: If there is no memory for it.
    """
    return FeatureDrafter(NAME, FeatureContext(target), target, (MTP_HIDDEN,))


def _lacks(resources: Resources) -> str:
    if resources.header is None:
        return "it needs MTP layers, and this model has none"
    return without_mtp(resources.header)


def _make(resources: Resources) -> Drafter:
    assert resources.llama is not None  # a header comes with a model
    return open_mtp(resources.llama)


METHOD: Final = Method(
    NAME,
    _make,
    lacks=_lacks,
    about="layers that the model was trained with predict what follows",
    auto=True,
    calls=FEATURE_CALLS,
)
