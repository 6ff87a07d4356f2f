"""Loads a GGUF into the torch decoder, for methods that need gradients through the target.

Refuses models with a tensor or key that the decoder does not implement: ignoring it would train for another model than
llama.cpp runs. Architectures: llama.cpp, src/models/llama.cpp and src/models/qwen3.cpp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor

from slipstream.drafters.training.decoder import Decoder, DecoderShape
from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.parse import TensorInfo, Value
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.outside import quoted, shown_path

ARCHITECTURES: Final = ("llama", "qwen3")  # that the decoder implements
_LARGEST_SIZE: Final = 1 << 24
_INSTEAD: Final = "Train medusa: it needs the target's last hidden states alone."
# keys that can change what a model computes, and the values with which the decoder still computes the same
_CHANGES_NOTHING: Final = MappingProxyType(
    {
        "expert_count": (0,),
        "nextn_predict_layers": (0,),
        "attention.causal": (True,),
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "attention.scale": (0,),
        "attention.sliding_window": (0,),
        "attention.temperature_scale": (0,),
        "embedding_scale": (0, 1),
        "final_logit_softcapping": (0,),
        "logit_scale": (0, 1),
        "residual_scale": (0, 1),
        "rope.dimension_sections": (),
        "rope.scaling.alpha": (0,),
        "rope.scaling.attn_factor": (1,),
        "rope.scaling.type": ("none", "linear"),
    }
)


def load_gguf(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model of a GGUF, dequantized, frozen and in evaluation mode.

    The peak of memory is the model and one more tensor. Frequency factors stay float32.

    Args:
        path: the file, or the first file of a split model.
    """
    header = read_header(path)
    with torch.device("meta"):
        model = Decoder(shape_of(header))
    _check_tensors(header, model)
    state = {}
    for info in header.tensors:
        values = dequantized(header, info)
        state[info.name] = values if info.name == "rope_freqs.weight" else values.to(dtype)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def shape_of(header: Header) -> DecoderShape:
    """The decoder's shape for a model file."""
    architecture = header.architecture
    if architecture not in ARCHITECTURES:
        raise SlipstreamError(
            f"{shown_path(header.path)} has the architecture {quoted(architecture)}: heads that compute as their "
            f"target does are trained for {' and '.join(ARCHITECTURES)}.",
            _INSTEAD,
        )
    for key, harmless in _CHANGES_NOTHING.items():
        value = header.metadata.get(f"{architecture}.{key}")
        if value is not None and value not in harmless:
            raise _refusal(header, f"sets {architecture}.{key} to {_shown(value)}")
    width, heads = _count(header, "embedding_length"), _count(header, "attention.head_count")
    head_size = _count(header, "attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if _count(header, key, head_size) != head_size:
            raise _refusal(header, f"sets {architecture}.{key} to another size than its heads have, {head_size}")
    kv_heads = _count(header, "attention.head_count_kv", heads)
    if heads % kv_heads or head_size % 2:
        raise _refusal(header, f"has {heads} heads of {head_size} for {kv_heads} heads of keys")
    names = {info.name: info for info in header.tensors}
    embedding = names.get("token_embd.weight")
    return DecoderShape(
        width=width,
        layers=_count(header, "block_count"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=_count(header, "feed_forward_length"),
        vocabulary=embedding.shape[-1] if embedding else header.n_vocab,
        context=_count(header, "context_length"),
        rope_base=_real(header, "rope.freq_base", 10_000.0),
        eps=_real(header, "attention.layer_norm_rms_epsilon"),
        rope="pairs" if architecture == "llama" else "halves",
        rope_scaling=_scaling(header),
        rope_factors=architecture == "llama" and "rope_freqs.weight" in names,
        qk_norm=architecture == "qwen3",
        tied="output.weight" not in names,
    )


@dataclass(frozen=True)
class TargetMatrices:
    """What heads take from their target."""

    output: Tensor  # (vocabulary, width): the output matrix, or the embedding if the model has no other one
    embedding: Tensor  # (vocabulary, width)
    rope_factors: Tensor | None  # of the rotary frequencies, if the file has them

    @staticmethod
    def of(header: Header, load: Callable[[Header, TensorInfo], Tensor]) -> "TargetMatrices":
        """Args: load: gives a tensor of the file."""
        by_name = {info.name.removesuffix(".weight"): info for info in header.tensors}
        if "token_embd" not in by_name:
            raise ModelFileError(f"{header.path} has no vocabulary matrix.", "Get another conversion of the model.")
        names = ("token_embd", "output", "rope_freqs")
        embedding, output, factors = (load(header, by_name[n]) if n in by_name else None for n in names)
        return TargetMatrices(embedding if output is None else output, embedding, factors)


def _scaling(header: Header) -> float:
    if header.metadata.get(f"{header.architecture}.rope.scaling.type") == "none":
        return 1.0
    old_name = _real(header, "rope.scale_linear", 0.0)
    return _real(header, "rope.scaling.factor", old_name) or 1.0


def _count(header: Header, key: str, default: int | None = None) -> int:
    value = header.metadata.get(f"{header.architecture}.{key}", default)
    if not isinstance(value, int) or not 1 <= value <= _LARGEST_SIZE:
        raise _refusal(header, f"has {_shown(value)} as {header.architecture}.{key} where one whole number is needed")
    return value


def _real(header: Header, key: str, default: float | None = None) -> float:
    value = header.metadata.get(f"{header.architecture}.{key}", default)
    if not isinstance(value, int | float):
        raise _refusal(header, f"has {_shown(value)} as {header.architecture}.{key} where a number is needed")
    return float(value)


def _check_tensors(header: Header, model: Decoder) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {info.name: info.shape[::-1] for info in header.tensors}
    for name in found:
        if name not in wanted:
            raise _refusal(header, f"has the tensor {quoted(name, 64)}")
    for name, shape in wanted.items():
        if name not in found:
            raise _refusal(header, f"lacks the tensor {name}")
        if found[name] != shape:
            raise _refusal(header, f"has {name} in the shape {found[name]} in place of {shape}")


def dequantized(header: Header, info: TensorInfo) -> Tensor:
    """A tensor of the file in float32."""
    values = read_tensor(header, info)
    if values.dtype != np.float32:
        raise _refusal(header, f"stores {info.name} as {info.type_name}")
    return torch.from_numpy(np.require(values, np.float32, ["W", "E"]))


def _refusal(header: Header, what: str) -> SlipstreamError:
    return SlipstreamError(f"{shown_path(header.path)} {what}, which training does not compute.", _INSTEAD)


def _shown(value: Value | None) -> str:
    return "nothing" if value is None else quoted(value) if isinstance(value, str) else quoted(str(value))
