"""Which type each matrix of a quantization has: llama.cpp's choices for llama-like models (``src/llama-quant.cpp``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import gguf
from gguf import GGMLQuantizationType as Kind
from gguf import LlamaFileType

from slipstream.models.errors import UsageError
from slipstream.models.quoting import quoted

MIXES: Final[Mapping[str, tuple[Kind, LlamaFileType]]] = MappingProxyType(
    {
        "F32": (Kind.F32, LlamaFileType.ALL_F32),
        "F16": (Kind.F16, LlamaFileType.MOSTLY_F16),
        "BF16": (Kind.BF16, LlamaFileType.MOSTLY_BF16),
        "Q8_0": (Kind.Q8_0, LlamaFileType.MOSTLY_Q8_0),
        "Q4_0": (Kind.Q4_0, LlamaFileType.MOSTLY_Q4_0),
        "Q4_K_M": (Kind.Q4_K, LlamaFileType.MOSTLY_Q4_K_M),
    }
)
"""Quantization to the type of most matrices, and what the file calls itself."""

_FINER: Final = MappingProxyType({Kind.Q4_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0, Kind.Q4_0: Kind.F16, Kind.Q8_0: Kind.F16})
"""What rows become that are not whole blocks."""


def mix_named(name: str) -> str:
    """Finds a quantization.

    Raises:
        UsageError: If there is none of this name.
    """
    if name.upper() not in MIXES:
        raise UsageError(f"there is no quantization {quoted(name)} to inflate to.", f"Known: {', '.join(MIXES)}.")
    return name.upper()


def kind_of(mix: str, name: str, columns: int, layer: int = 0, layers: int = 1) -> Kind:
    """The type of a matrix.

    Args:
        mix: One of ``MIXES``.
        name: Such as ``attn_v``; ``output`` for the vocabulary matrix, the token embedding too where it is both.
        columns: Weights of a row.
        layer: Which layer it belongs to.
        layers: How many there are.
    """
    kind = MIXES[mix][0]
    if name == "output" and kind in (Kind.Q4_0, Kind.Q4_K):
        kind = Kind.Q6_K
    if mix == "Q4_K_M" and name in ("attn_v", "ffn_down") and _finer_layer(layer, layers):
        kind = Kind.Q6_K
    return whole(kind, columns)


def whole(kind: Kind, columns: int) -> Kind:
    """The type, or the one that stands in for it where rows are not whole blocks."""
    while columns % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = _FINER.get(kind, Kind.F32)
    return kind


def _finer_layer(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
