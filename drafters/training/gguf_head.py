"""Writes the heads that llama.cpp runs itself (EAGLE-3, DFlash): shape, tokenizer and training facts in one GGUF."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from numpy.typing import NDArray

from slipstream.drafters.training.acceptance import Acceptance
from slipstream.drafters.training.decoder import DecoderShape
from slipstream.models.gguf.parse import F32, F64, I32, STRING, U32, Value
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import NewTensor, write_gguf
from slipstream.models.heads.file import Text, identity
from slipstream.models.heads.matching_heads import ACCEPTANCE_KEY, TARGET_KEY, TEXT_KEY

_IDS = gguf.GGMLQuantizationType.I64


def write_gguf_head(
    path: Path,
    architecture: str,
    shape: DecoderShape,
    weights: Mapping[str, NDArray[Any]],
    *,
    target: Header,
    layers: Sequence[int],
    more: Mapping[str, tuple[int, Value]],
    text: Text,
    found: Acceptance,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.Q8_0,
) -> None:
    """Writes a head with the target's tokenizer.

    Args:
        shape: Of the head, not of the target.
        weights: By llama.cpp's names; integers are stored as they are, vectors in float32.
        layers: The target's layers whose inputs it reads.
    """
    numbers = {
        "context_length": shape.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "rope.dimension_count": shape.head_size,
        "vocab_size": shape.vocabulary,
    }
    reals = {"attention.layer_norm_rms_epsilon": shape.eps, "rope.freq_base": shape.rope_base}
    metadata: dict[str, tuple[int, Value]] = {
        key: (target.types[key], value) for key, value in target.metadata.items() if key.startswith("tokenizer.ggml.")
    }
    metadata |= {f"{architecture}.{key}": (U32, value) for key, value in numbers.items()}
    metadata |= {f"{architecture}.{key}": (F32, value) for key, value in reals.items()}
    metadata |= {
        f"{architecture}.target_layers": (-1 - I32, list(layers)),
        "general.name": (STRING, f"{target.title} {architecture}"),
        "general.quantization_version": (U32, gguf.GGML_QUANT_VERSION),
        TARGET_KEY: (STRING, identity(target)),
        TEXT_KEY: (STRING, text),
        ACCEPTANCE_KEY: (-1 - F64, [round(share, 4) for share in found.shares]),
        **more,
    }

    def reader(values: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        return lambda: values

    def stored(values: NDArray[Any]) -> gguf.GGMLQuantizationType:
        if values.dtype.kind == "i":
            return _IDS
        return kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32

    tensors = [NewTensor(name, values.shape, stored(values), reader(values)) for name, values in weights.items()]
    write_gguf(path, architecture, metadata, tensors)
