"""What a model needs in one context, as ``fit`` counts it."""

from slipstream.models.gguf.reader import Header
from slipstream.models.memory.need import ContextSize, Need, need_of, size_of
from slipstream.models.types import KvType


def need(
    header: Header,
    n_ctx: int,
    kv: KvType = "f16",
    gpu_layers: int = 0,
    *,
    leaves: int = 16,
    draft: Header | None = None,
    flash: bool = True,
    measured: int | None = None,
) -> Need:
    """The need of a model, and of its draft model, with some layers on one GPU; -1 for all."""
    size = size_of(header)
    most = len(size.layers) + 1
    count = most if gpu_layers < 0 else min(gpu_layers, most)
    context = ContextSize(n_ctx, kv, leaves=leaves, flash=flash)
    own = need_of(size, context, (count,) if count else (), measured)
    if draft is None:
        return own
    extras = need(draft, n_ctx, leaves=4)
    return own.beside(extras.total, extras.on)
