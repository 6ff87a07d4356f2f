"""A llama model of random weights in whole steps of every kernel: a wider copy's sums round the same way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.models.kinds import TOKENS

from slipstream.models.gguf.parse import BOOL, F32, I32, STRING, U32
from slipstream.models.gguf.tensors import NewTensor, write_gguf

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, UNITS = 64, 3, 4, 2, 64, 128
_TYPES = [2, 3, 3, *[6] * 256, *[1] * (len(TOKENS) - 259)]


def write_small(path: Path, tied: bool = False) -> Path:
    rng = np.random.default_rng(5)

    def tensor(name: str, *shape: int, gain: float = 1.0) -> NewTensor:
        drawn = rng.normal(float(len(shape) == 1), gain / shape[-1] ** 0.5, shape).astype(np.float32)
        return NewTensor(f"{name}.weight", shape, gguf.GGMLQuantizationType.F32, _giving(drawn))

    tensors = [tensor("token_embd", len(TOKENS), WIDTH, gain=8.0), tensor("output_norm", WIDTH)]
    tensors.append(tensor("rope_freqs", HEAD // 2))
    if not tied:
        tensors.append(tensor("output", len(TOKENS), WIDTH, gain=3.0))
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        tensors += [tensor(f"{at}{name}_norm", WIDTH) for name in ("attn", "ffn")]
        tensors += [
            tensor(f"{at}attn_q", HEADS * HEAD, WIDTH),
            tensor(f"{at}attn_k", KV_HEADS * HEAD, WIDTH),
            tensor(f"{at}attn_v", KV_HEADS * HEAD, WIDTH),
            tensor(f"{at}attn_output", WIDTH, HEADS * HEAD),
            tensor(f"{at}ffn_gate", UNITS, WIDTH),
            tensor(f"{at}ffn_up", UNITS, WIDTH),
            tensor(f"{at}ffn_down", WIDTH, UNITS),
        ]
    sizes = {
        "context_length": 512, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": UNITS,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD, "vocab_size": len(TOKENS),
    }  # fmt: skip
    metadata: dict[str, tuple[int, Any]] = {f"llama.{key}": (U32, value) for key, value in sizes.items()}
    metadata |= {
        "general.name": (STRING, "Small"), "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 1e4), "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (-1 - STRING, TOKENS),
        "tokenizer.ggml.scores": (-1 - F32, [-float(token) for token in range(len(TOKENS))]),
        "tokenizer.ggml.token_type": (-1 - I32, _TYPES), "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2), "tokenizer.ggml.add_bos_token": (BOOL, True),
    }  # fmt: skip
    write_gguf(path, "llama", metadata, tensors)
    return path


def _giving(values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
    return lambda: values
