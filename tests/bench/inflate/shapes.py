"""Shapes of models, how a small one is embedded in a large one, and each matrix's type (``src/llama-quant.cpp``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import LlamaFileType
from numpy.typing import NDArray

from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import Header
from slipstream.models.outside import quoted

Ints = NDArray[np.int64]

NONE: Final = -1  # in a map from large to small: the small model has no counterpart
_UNITS: Final = 256  # feed-forward widths are multiples of it, as every kernel and block type needs


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a llama-like model."""

    name: str  # its usual name, such as ``7b``
    n_embd: int
    n_layer: int
    n_head: int  # query heads
    n_head_kv: int  # key and value heads
    head: int  # size of a head
    n_ff: int  # inner width of the feed-forward network
    n_vocab: int  # rows of the vocabulary matrix
    tied: bool = False  # whether the vocabulary matrix is also the token embedding
    of: str = ""  # the published model of this shape


_SHAPES: Final = (
    Shape("135m", 576, 30, 9, 3, 64, 1536, 49_152, tied=True, of="SmolLM2 135M"),
    Shape("0.5b", 896, 24, 14, 2, 64, 4864, 151_936, tied=True, of="Qwen2.5 0.5B"),
    Shape("1b", 2048, 22, 32, 4, 64, 5632, 32_000, of="TinyLlama 1.1B"),
    Shape("3b", 3072, 28, 24, 8, 128, 8192, 128_256, tied=True, of="Llama 3.2 3B"),
    Shape("7b", 4096, 32, 32, 32, 128, 11_008, 32_000, of="Llama 2 7B"),
    Shape("8b", 4096, 32, 32, 8, 128, 14_336, 128_256, of="Llama 3.1 8B"),
    Shape("13b", 5120, 40, 40, 40, 128, 13_824, 32_000, of="Llama 2 13B"),
)
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType({shape.name: shape for shape in _SHAPES})


def shape_named(name: str) -> Shape:
    """Finds a published shape.

    Raises:
        UsageError: If there is none of this name.
    """
    if name.lower() not in SHAPES:
        raise UsageError(f"there is no shape {quoted(name)} to widen a model to.", f"Shapes: {', '.join(SHAPES)}.")
    return SHAPES[name.lower()]


def measures(header: Header, tied: bool) -> Shape:
    """Reads a model's shape.

    Args:
        header: The header of a llama-like model or an EAGLE-3 head.
        tied: Whether its vocabulary matrix is also its token embedding.

    Raises:
        SlipstreamError: If the file does not give the dimensions, or gives them per layer.
    """
    width, layers, heads, units = (
        header.number(key) for key in ("embedding_length", "block_count", "attention.head_count", "feed_forward_length")
    )
    if not (width and layers and heads and units):
        raise cannot(header, "its file does not give one width, head count and feed-forward width for all layers")
    keys = header.number("attention.head_count_kv") or heads
    head = header.number("attention.key_length") or width // heads
    if heads % keys or (header.number("attention.value_length") or head) != head:
        raise cannot(header, "its heads are not of one size, or do not share keys evenly")
    return Shape(header.title, width, layers, heads, keys, head, units, header.n_vocab, tied)


def cannot(header: Header, reason: str) -> SlipstreamError:
    return SlipstreamError(f"{quoted(header.title)} cannot be widened: {reason}.", "Widen the bundled model.")


@dataclass(frozen=True, slots=True)
class Growth:
    """How a small model is embedded in a large one."""

    small: Shape  # the small model's shape
    large: Shape  # the large model's shape, with heads of the small model's size
    heads: Ints  # for each query head of the large model, the small model's query head, or ``NONE``
    kv_heads: Ints  # for each KV head of the large model, the small model's KV head, or ``NONE``
    layers: tuple[int, ...]  # for each layer of the small model, the large model's layer

    @property
    def scale(self) -> float:
        """Factor of the norms' weights; its square is the factor of their epsilon."""
        return float(np.sqrt(self.small.n_embd / self.large.n_embd))

    def layer(self, number: int) -> int:
        """The large model's layer that has the same input as layer ``number`` of the small model."""
        return self.layers[number] if number < len(self.layers) else self.large.n_layer


def growth(small: Shape, large: Shape) -> Growth:
    """Embeds a small model in a large one.

    Its layers are spread evenly: the input of a layer, which a drafter may read, is then computed after the same share
    of the cost. Query heads keep their key head; if the large model has fewer query heads per key head, key heads are
    duplicated. The vocabulary is the larger of both. A shape with too few layers gets as many as the small model, with
    fewer units in each: a pass reads as many weights as before.

    Raises:
        SlipstreamError: If the large model is smaller in any dimension, or cannot be divided into heads of this size.
    """
    queries, keys, rows = large.n_head * large.head, large.n_head_kv * large.head, large.n_vocab
    where = f"{quoted(small.name)} cannot be widened to {large.name}"
    if queries % small.head or keys % small.head:
        raise SlipstreamError(
            f"{where}: its heads of {small.head} do not divide the large model's {queries:,} and {keys:,}.",
            "Choose another shape.",
        )
    large = replace(
        large,
        n_head=queries // small.head,
        n_head_kv=keys // small.head,
        head=small.head,
        n_vocab=max(small.n_vocab, large.n_vocab),
    )
    if small.n_layer > large.n_layer:
        attention = 2 * large.n_embd * (queries + keys)
        weights = large.n_layer * (attention + 3 * large.n_embd * large.n_ff) - large.n_embd * (large.n_vocab - rows)
        units = (weights / small.n_layer - attention) / (3 * large.n_embd)
        large = replace(large, n_layer=small.n_layer, n_ff=round(units / _UNITS) * _UNITS)
    mine, theirs = large.n_head // large.n_head_kv, small.n_head // small.n_head_kv
    copies = -(-theirs // mine)  # copies of each key head
    for what, has, takes in (
        ("wide", small.n_embd, large.n_embd),
        ("rich in heads", small.n_head_kv * copies, large.n_head_kv),
        ("rich in units", small.n_ff, large.n_ff),
    ):
        if has > takes:
            raise SlipstreamError(f"{where}: that is not as {what} ({takes:,}, not {has:,}).", "Choose a larger shape.")
    if large.n_head % large.n_head_kv:
        raise SlipstreamError(f"{where}: its query heads do not share keys evenly.", "Choose another shape.")
    heads, kv_heads = np.full(large.n_head, NONE), np.full(large.n_head_kv, NONE)
    for head in range(small.n_head):
        key, place = divmod(head, theirs)
        at = key * copies + place // mine
        kv_heads[at], heads[at * mine + place % mine] = key, head
    layers = tuple(layer * large.n_layer // small.n_layer for layer in range(small.n_layer))
    return Growth(small, large, heads, kv_heads, layers)


# quantization to the type of most matrices, and the file type in the header
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

_FINER: Final = MappingProxyType({Kind.Q4_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0, Kind.Q4_0: Kind.F16, Kind.Q8_0: Kind.F16})
"""The type used instead if rows are not whole blocks."""


def mix_named(name: str) -> str:
    """Finds a quantization.

    Raises:
        UsageError: If there is none of this name.
    """
    if name.upper() not in MIXES:
        raise UsageError(f"there is no quantization {quoted(name)} to widen a model to.", f"Known: {', '.join(MIXES)}.")
    return name.upper()


def kind_of(mix: str, name: str, columns: int, layer: int = 0, layers: int = 1) -> Kind:
    """The type of a matrix.

    Args:
        mix: One of ``MIXES``.
        name: Such as ``attn_v``; ``output`` for the vocabulary matrix, even if it is also the token embedding.
    """
    kind = MIXES[mix][0]
    if name == "output" and kind in (Kind.Q4_0, Kind.Q4_K):
        kind = Kind.Q6_K
    if mix == "Q4_K_M" and name in ("attn_v", "ffn_down") and _finer_layer(layer, layers):
        kind = Kind.Q6_K
    return whole(kind, columns)


def whole(kind: Kind, columns: int) -> Kind:
    """Returns ``kind``, or the type used instead if rows are not whole blocks of it."""
    while columns % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = _FINER.get(kind, Kind.F32)
    return kind


def _finer_layer(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
