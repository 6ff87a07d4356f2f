"""Drafter ``mtp``: the multi-token prediction layer that a model was trained with, run by llama.cpp.

Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2), driven as in llama.cpp's ``common/speculative.cpp``.
"""

from __future__ import annotations

from typing import ClassVar

from slipstream.drafters.base import Drafter
from slipstream.drafters.feature_drafter import FeatureDrafter
from slipstream.drafters.parts import Method, Parts
from slipstream.models.mtp_check import without_mtp
from slipstream.models.runtime.features import FeatureContext
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.types import MTP_HIDDEN


class Mtp(FeatureDrafter):
    """Drafts with the layer behind the target's last one, which feeds on its own output after the first token.

    Its pairs are those of EAGLE-3 without the narrowing; llama.cpp counts the place of a pair from its token, which
    rotates everything by one and changes nothing.
    """

    name: ClassVar[str] = "mtp"

    def __init__(self, target: LlamaTarget) -> None:
        """Opens a second context on the target's weights.

        Raises:
            SlipstreamError: If there is no memory for it.
        """
        super().__init__(FeatureContext(target), target, (MTP_HIDDEN,))


def _lacks(parts: Parts) -> str:
    if parts.header is None:
        return "it needs MTP layers, and this model has none"
    return without_mtp(parts.header)


def _make(parts: Parts) -> Drafter:
    assert parts.llama is not None  # a header comes with a model
    return Mtp(parts.llama)


METHOD = Method(Mtp.name, _make, lacks=_lacks, about="layers that the model was trained with predict what follows")
