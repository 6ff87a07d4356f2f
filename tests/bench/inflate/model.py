"""Inflates a model of the llama architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.bench.inflate.file import Inflated, derived_from, made_as, target_identity, widened
from tests.bench.inflate.shapes import MIXES, Growth, Shape, cannot, growth, kind_of, measures
from tests.bench.inflate.tensor import Filler, LargeTensor, Layout, matrix, vocabulary

from slipstream.models.gguf.parse import STRING, TensorInfo
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import NewTensor, read_tensor
from slipstream.models.gguf.vocabulary import spare_token
from slipstream.models.outside import quoted
from slipstream.models.types import Floats

NORMS: Final = ("attn_norm", "ffn_norm")
MATRICES: Final = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_OUTSIDE: Final = ("token_embd", "output", "output_norm", "rope_freqs")
_PART: Final = re.compile(r"(?:blk\.\d{1,3}\.(\w+)|(\w+))\.weight")
_F32: Final = gguf.GGMLQuantizationType.F32


def model_growth(header: Header, shape: Shape) -> Growth:
    """Computes how a model is embedded in a larger shape.

    Raises:
        SlipstreamError: If it cannot be inflated, or not to this shape.
    """
    if header.architecture != "llama":
        raise cannot(header, f"only the llama architecture can be, and this is {quoted(header.architecture)}")
    for tensor in header.tensors:
        part = _PART.fullmatch(tensor.name)
        if not part or (part[1] not in (*NORMS, *MATRICES) if part[1] else part[2] not in _OUTSIDE):
            raise cannot(header, f"it has the tensor {quoted(tensor.name, 64)}, which has no place in the large model")
    names = {tensor.name for tensor in header.tensors}
    if missing := {"token_embd.weight", "output_norm.weight"} - names:
        raise cannot(header, f"it has no {min(missing)}")
    return growth(measures(header, "output.weight" not in names), shape)


def inflated_model(header: Header, shape: Shape, mix: str) -> Inflated:
    """Plans a model with the dimensions of a large one and the outputs of a small one.

    Args:
        mix: The quantization, one of ``MIXES``. It applies to the small model's weights too, so the outputs are those
            of the small model in this quantization.

    Raises:
        SlipstreamError: If the model cannot be inflated, or not to this shape.
    """
    grown = model_growth(header, shape)
    tied = shape.tied and grown.small.tied
    by_name, filler, spare = {tensor.name: tensor for tensor in header.tensors}, Filler(), spare_token(header)
    large = grown.large

    def reader(name: str) -> Callable[[], Floats]:
        return lambda: read_tensor(header, by_name[name])

    def table(name: str, small: str) -> LargeTensor:
        layout = vocabulary(grown, spare, embeds=name == "token_embd")
        kind = kind_of(mix, "output" if tied else name, large.n_embd)
        return LargeTensor(f"{name}.weight", (large.n_vocab, large.n_embd), kind, reader(small), layout, filler)

    own = "token_embd.weight" if grown.small.tied else "output.weight"
    tensors: list[NewTensor] = [table("token_embd", "token_embd.weight")]
    places = {place: layer for layer, place in enumerate(grown.layers)}
    for layer in range(large.n_layer):
        small = places.get(layer)
        for name in NORMS:
            norm = None if small is None else by_name[f"blk.{small}.{name}.weight"]
            tensors.append(norm_tensor(f"blk.{layer}.{name}.weight", header, norm, grown))
        for name in MATRICES:
            layout = matrix(name, grown, real=small is not None)
            kind = kind_of(mix, name, len(layout.columns), layer, large.n_layer)
            values = _nothing if small is None else reader(f"blk.{small}.{name}.weight")
            tensors.append(large_tensor(f"blk.{layer}.{name}.weight", kind, values, layout, filler))
    tensors.append(norm_tensor("output_norm.weight", header, by_name["output_norm.weight"], grown))
    if not tied:
        tensors.append(table("output", own))
    if freqs := by_name.get("rope_freqs.weight"):
        tensors.append(NewTensor(freqs.name, freqs.shape[::-1], _F32, reader(freqs.name)))
    name = f"{header.title} widened to {shape.name}, {mix}"
    metadata = widened(header, grown, name, made_as(header, grown, mix), int(MIXES[mix][1]))
    metadata |= derived_from(target_identity(header, grown))
    about = f"{header.title} in the measures of {shape.of or shape.name}: its text, at that model's cost."
    return Inflated("llama", metadata | {"general.description": (STRING, about)}, tensors)


def large_tensor(
    name: str, kind: gguf.GGMLQuantizationType, values: Callable[[], NDArray[Any]], layout: Layout, filler: Filler
) -> LargeTensor:
    """A matrix with the dimensions of its layout."""
    return LargeTensor(name, (len(layout.rows), len(layout.columns)), kind, values, layout, filler)


def norm_tensor(name: str, header: Header, small: TensorInfo | None, grown: Growth) -> NewTensor:
    """Plans the weights of a norm; in added layers and dimensions, all weights are equal."""

    def values() -> Floats:
        wide = np.full(grown.large.n_embd, grown.scale, np.float32)
        if small is not None:
            wide[: grown.small.n_embd] = read_tensor(header, small) * np.float32(grown.scale)
        return wide

    return NewTensor(name, (grown.large.n_embd,), _F32, values)


def tensors_of(header: Header) -> Mapping[str, TensorInfo]:
    return {tensor.name: tensor for tensor in header.tensors}


def _nothing() -> Floats:
    """The small matrix of an added layer."""
    return np.empty((0, 0), np.float32)
