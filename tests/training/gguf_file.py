"""Writes a decoder as a GGUF, in any of the kinds that ``from_gguf`` must read back."""

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from tests.models.kinds import add_all, finish

from slipstream.drafters.training.decoder import Decoder, DecoderShape
from slipstream.models.gguf.reader import read_header

BUNDLED = Path(__file__).parents[2] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
WORDS = 4096
"""Tokens of the bundled model's vocabulary."""


def random_decoder(shape: DecoderShape, seed: int = 1) -> Decoder:
    """Weights large enough that every part of the model matters for the logits."""
    torch.manual_seed(seed)
    model = Decoder(shape)
    for name, values in model.state_dict().items():
        if name == "rope_freqs.weight":
            values.copy_(torch.linspace(1, 8, len(values)))
        else:
            torch.nn.init.normal_(values, mean=float(values.ndim == 1), std=0.1)
    return model.eval()


def write_model(
    path: Path,
    model: Decoder,
    kind: Kind = Kind.F32,
    keys: dict[str, int | float | bool | str] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    tensors_per_file: int = 0,
    words: bool = False,
) -> None:
    """Writes the file; ``keys`` and ``tensors`` win over what the model says. ``words``: the bundled tokenizer and
    template."""
    shape = model.shape
    architecture = "qwen3" if shape.qk_norm else "llama"
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_file)
    values = {
        "context_length": shape.context, "embedding_length": shape.width, "block_count": shape.layers,
        "feed_forward_length": shape.ffn, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size, "attention.layer_norm_rms_epsilon": shape.eps,
        "rope.freq_base": shape.rope_base, "rope.dimension_count": shape.head_size, "vocab_size": shape.vocabulary,
        **(keys or {}),
    }  # fmt: skip
    add_all(writer, f"{architecture}.", values)
    if words:
        header = read_header(BUNDLED)
        for key in (key for key in header.metadata if key.startswith("tokenizer.")):
            type_id, word = header.types[key], header.metadata[key]
            if type_id < 0:
                writer.add_key_value(key, word, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(-1 - type_id))
            else:
                writer.add_key_value(key, word, gguf.GGUFValueType(type_id))
        writer.add_name(path.stem)
    else:
        writer.add_tokenizer_model("none")
    for name, tensor in {**model.state_dict(), **(tensors or {})}.items():
        matrix = tensor.numpy()
        if kind == Kind.F32 or matrix.ndim == 1:
            writer.add_tensor(name, matrix)
        else:
            writer.add_tensor(name, gguf.quants.quantize(matrix, kind), raw_dtype=kind)
    finish(writer)


def dequantized(values: torch.Tensor, kind: Kind) -> np.ndarray:
    """What is left of a matrix after it was stored."""
    return gguf.quants.dequantize(gguf.quants.quantize(values.numpy(), kind), kind)
