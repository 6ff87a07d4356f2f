"""Drafter ``mtp``: the multi-token prediction layer that a model was trained with, in its file or a separate one.

Source: DeepSeek-V3 (arXiv 2412.19437, section 2.2), driven as in llama.cpp's ``common/speculative.cpp``.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from slipstream.drafters.base import Drafter
from slipstream.drafters.feature_drafter import FeatureDrafter, Head
from slipstream.drafters.resources import FEATURE_CALLS, Method, Resources
from slipstream.models.gguf.architectures import ASSISTANT, without_mtp
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.mtp_head import unfit_mtp
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import AssistantContext, FeatureContext
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import MTP_HIDDEN

NAME: Final = "mtp"


def open_mtp(target: LlamaTarget, path: Path | None = None) -> FeatureDrafter:
    """Opens a second context for MTP layers: on the target's weights, or on a separate file.

    After the first drafted token the layer reads its own output. Its pairs are those of EAGLE-3, without the projection
    of the features. llama.cpp gives a pair its token's position; this shifts all positions by one and has no effect.

    Args:
        path: A file that ``unfit_mtp`` has found to fit the target; None for the target's own layer.
    """
    with ExitStack() as opened:
        head: Head
        if path is None:
            head = FeatureContext(target)
        else:
            model = opened.enter_context(closing(LlamaModel(path, placement=target.placement.beside())))
            shares = model.header.architecture == ASSISTANT
            head = AssistantContext(target, model) if shares else FeatureContext(target, model)
        return FeatureDrafter(NAME, head, target, (MTP_HIDDEN,), opened=opened.pop_all())


def _lacks(resources: Resources) -> str:
    if resources.header is None:
        return "it needs MTP layers, and this model has none"
    own = without_mtp(resources.header)
    if not own or NAME not in resources.heads:
        return own
    if resources.llama is not None and MTP_HIDDEN not in resources.abilities.hidden:
        return "this model does not hand out what MTP layers read"
    return unfit_mtp(read_header(resources.heads[NAME]), resources.header)


def _make(resources: Resources) -> Drafter:
    assert resources.llama and resources.header  # a model has a header
    own = not without_mtp(resources.header)
    return open_mtp(resources.llama, None if own else resources.heads[NAME])


METHOD: Final = Method(
    NAME,
    _make,
    lacks=_lacks,
    about="layers that the model was trained with predict what follows",
    auto=True,
    calls=FEATURE_CALLS,
)
