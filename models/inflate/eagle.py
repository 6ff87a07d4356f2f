"""Inflates an EAGLE-3 head with its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import gguf
import numpy as np

from slipstream.models.companions import TARGET_KEY
from slipstream.models.eagle_check import target_layers
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import Header
from slipstream.models.gguf_tensors import read_tensor
from slipstream.models.gguf_types import I32, STRING, U32
from slipstream.models.gguf_write import NewTensor
from slipstream.models.heads import identity
from slipstream.models.inflate.file import Inflated, made_as, spare_token, target_identity, widened
from slipstream.models.inflate.layout import Layout, beside, matrix, same, vocabulary
from slipstream.models.inflate.mixes import whole
from slipstream.models.inflate.model import MATRICES, large_tensor, norm_tensor, tensors_of
from slipstream.models.inflate.shapes import Growth, cannot, growth, measures
from slipstream.models.inflate.tensor import Filler
from slipstream.models.quoting import quoted
from slipstream.models.types import Floats

_NORMS: Final = ("blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm", "output_norm")
_AS_THEY_ARE: Final = ("d2t", "rope_freqs.weight")
_POINTS: Final = 3


def inflated_eagle(header: Header, target: Header, placed: Growth) -> Inflated:
    """Plans a head that reads the inflated target's stream where it is what the small head read.

    Args:
        header: Of the head.
        target: Header of the small target.
        placed: How the target stands in the large one.

    Raises:
        SlipstreamError: If the head is another model's, or has a part that has no place in a large one.
    """
    if header.metadata.get(TARGET_KEY) != identity(target):
        raise SlipstreamError(
            f"{quoted(header.name)} was trained for another model than {quoted(target.name)}.", "Train one for it."
        )
    own = growth(measures(header, tied=False), replace(placed.large, n_layer=1))
    filler, by_name, made = Filler(), tensors_of(header), target_identity(target, placed)

    def reader(name: str) -> Callable[[], Floats]:
        return lambda: read_tensor(header, by_name[name])

    tensors: list[NewTensor] = []
    for name, tensor in by_name.items():
        stem = name.removesuffix(".weight")
        kind = gguf.GGMLQuantizationType(tensor.type)
        if name in _AS_THEY_ARE:
            tensors.append(NewTensor(name, tensor.shape[::-1], kind, reader(name)))
        elif stem in _NORMS:
            tensors.append(norm_tensor(name, header, tensor, own))
        else:
            layout = _layout(header, stem, placed, own, "d2t" in by_name)
            tensors.append(large_tensor(name, whole(kind, len(layout.columns)), reader(name), layout, filler))
    name = f"{header.name} inflated to {placed.large.name}"
    stored_as = header.metadata.get("general.file_type")
    file_type = stored_as if isinstance(stored_as, int) else 0
    metadata = widened(header, own, name, made_as(header, placed, made), file_type)
    return Inflated(
        header.architecture,
        metadata
        | {
            TARGET_KEY: (STRING, made),
            "eagle3.target_layers": (-1 - I32, [placed.layer(layer) for layer in target_layers(header)]),
            "eagle3.target_hidden_size": (U32, placed.large.n_embd),
        },
        tensors,
    )


def _layout(header: Header, stem: str, placed: Growth, own: Growth, chosen: bool) -> Layout:
    """The layout of a matrix of the head."""
    theirs, width = same(placed.small.n_embd, placed.large.n_embd), same(own.small.n_embd, own.large.n_embd)
    if stem == "fc":  # reads three points of the target's stream, side by side
        columns = theirs
        for _ in range(_POINTS - 1):
            columns = beside(columns, theirs)
        return Layout(width, columns, below=True)
    if stem == "token_embd" or (stem == "output" and not chosen):
        return vocabulary(own, spare_token(header), embeds=stem == "token_embd")
    if stem == "output":
        rows = tensors_of(header)["output.weight"].shape[1]
        return Layout(np.arange(rows), width)
    part = stem.removeprefix("blk.0.")
    if part not in MATRICES:
        raise cannot(header, f"it has the tensor {quoted(stem, 64)}, which has no place in the large head")
    layout = matrix(part, own)
    if part in ("attn_q", "attn_k", "attn_v"):  # read the token's embedding and the feature, side by side
        return replace(layout, columns=beside(width, width))
    return layout
