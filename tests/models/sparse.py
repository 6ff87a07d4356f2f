"""Writers of models as large as real ones that hold no numbers: headers, and holes in place of the weights."""

import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
from tests.models.kinds import recurrent

Shapes = dict[str, tuple[int, ...]]
Metadata = dict[str, Any]
Model = tuple[str, Metadata, Shapes, int]
"""Architecture, metadata without its prefix, numpy's shapes of the tensors, number of tokens."""

_Q8: Final = gguf.GGMLQuantizationType.Q8_0
_F32: Final = gguf.GGMLQuantizationType.F32
_PLAIN: Final = ("ssm_a", "ssm_d", "ssm_conv1d", "ssm_norm", "gate_inp", "shortconv.conv")


def write_sparse(path: Path, model: Model) -> Path:
    """Writes a Q8_0 file of the true length, which takes a few kilobytes of the disk."""
    architecture, metadata, tensors, vocabulary = model
    writer = gguf.GGUFWriter(path, architecture)
    adders = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in {**metadata, "vocab_size": vocabulary}.items():
        adders[type(value)](f"{architecture}.{key}", value)
    writer.add_tokenizer_model("no_vocab")
    length = 0
    for name, shape in tensors.items():
        kind = _F32 if len(shape) < 2 or any(word in name for word in _PLAIN) else _Q8
        block, size = gguf.GGML_QUANT_SIZES[kind]
        nbytes = prod(shape) // block * size
        writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, kind)
        length += -(-nbytes // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + length)
    return path


def _common(
    width: int, layers: int, heads: int, groups: int | list[int], head: int, inner: int | list[int]
) -> Metadata:
    return {
        "context_length": 40960, "embedding_length": width, "block_count": layers, "feed_forward_length": inner,
        "attention.head_count": heads, "attention.head_count_kv": groups, "attention.key_length": head,
        "attention.value_length": head, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 1e4, "rope.dimension_count": head,
    }  # fmt: skip


def _ends(width: int, vocabulary: int, tied: bool, norm: str = "output_norm") -> Shapes:
    found: Shapes = {"token_embd.weight": (vocabulary, width), f"{norm}.weight": (width,)}
    return found if tied else {**found, "output.weight": (vocabulary, width)}


def _attention(at: str, width: int, heads: int, groups: int, head: int, normed: bool, gated: bool = False) -> Shapes:
    found: Shapes = {
        f"{at}.attn_q.weight": (heads * head * (1 + gated), width),
        f"{at}.attn_k.weight": (groups * head, width),
        f"{at}.attn_v.weight": (groups * head, width),
        f"{at}.attn_output.weight": (width, heads * head),
    }
    if normed:
        found |= {f"{at}.attn_q_norm.weight": (head,), f"{at}.attn_k_norm.weight": (head,)}
    return found


def _network(at: str, width: int, inner: int, suffix: str = "") -> Shapes:
    return {
        f"{at}.ffn_gate{suffix}.weight": (inner, width),
        f"{at}.ffn_up{suffix}.weight": (inner, width),
        f"{at}.ffn_down{suffix}.weight": (width, inner),
    }


def _norms(at: str, width: int, *names: str) -> Shapes:
    return {f"{at}.{name}.weight": (width,) for name in names}


def _experts(at: str, width: int, count: int, inner: int) -> Shapes:
    stacked = {name: (count, *shape) for name, shape in _network(at, width, inner, "_exps").items()}
    return {f"{at}.ffn_gate_inp.weight": (count, width), **stacked}


def _mamba2(at: str, width: int, state: int, groups: int, heads: int, kernel: int, inner: int) -> Shapes:
    mixed = inner + 2 * groups * state
    return {
        f"{at}.ssm_in.weight": (inner + mixed + heads, width), f"{at}.ssm_conv1d.weight": (mixed, kernel),
        f"{at}.ssm_conv1d.bias": (mixed,), f"{at}.ssm_dt.bias": (heads,), f"{at}.ssm_a": (heads, 1),
        f"{at}.ssm_d": (heads, 1), f"{at}.ssm_norm.weight": (groups, inner // groups),
        f"{at}.ssm_out.weight": (width, inner),
    }  # fmt: skip


def dense(
    architecture: str,
    width: int,
    layers: int,
    heads: int,
    groups: int,
    head: int,
    inner: int,
    vocabulary: int,
    tied: bool,
    *norms: str,
    **more: int | float,
) -> Model:
    """A model whose layers are all alike: attention with grouped queries, and one network."""
    found = _ends(width, vocabulary, tied)
    for n in range(layers):
        at = f"blk.{n}"
        found |= _attention(at, width, heads, groups, head, architecture in ("qwen3", "gemma3"))
        found |= _network(at, width, inner) | _norms(at, width, "attn_norm", "ffn_norm", *norms)
    metadata = {name.replace("__", "."): value for name, value in more.items()}
    return architecture, {**_common(width, layers, heads, groups, head, inner), **metadata}, found, vocabulary


def qwen3moe(width: int, layers: int, heads: int, head: int, count: int, used: int, inner: int) -> Model:
    found = _ends(width, 16_384, tied=False)
    for n in range(layers):
        at = f"blk.{n}"
        found |= _attention(at, width, heads, 4, head, normed=True) | _norms(at, width, "attn_norm", "ffn_norm")
        found |= _experts(at, width, count, inner)
    more = {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": inner}
    return "qwen3moe", {**_common(width, layers, heads, 4, head, inner), **more}, found, 16_384


def deepseek2(layers: int) -> Model:
    """Latent attention, a first layer without experts, and shared experts."""
    width, heads, latent, rope, head, count, inner = 2048, 16, 512, 64, 128, 8, 1408
    found = _ends(width, 16_384, tied=False)
    for n in range(layers):
        at = f"blk.{n}"
        found |= _norms(at, width, "attn_norm", "ffn_norm")
        found |= {
            f"{at}.attn_q_a.weight": (768, width),
            f"{at}.attn_q_a_norm.weight": (768,),
            f"{at}.attn_q_b.weight": (heads * (head + rope), 768),
            f"{at}.attn_kv_a_mqa.weight": (latent + rope, width),
            f"{at}.attn_kv_a_norm.weight": (latent,),
            f"{at}.attn_k_b.weight": (heads, latent, head),
            f"{at}.attn_v_b.weight": (heads, head, latent),
            f"{at}.attn_output.weight": (width, heads * head),
        }
        if n:
            found |= _experts(at, width, count, inner) | _network(at, width, 2 * inner, "_shexp")
        else:
            found |= _network(at, width, 10_944)
    more = {
        "attention.value_length": latent, "attention.key_length_mla": head + rope, "attention.value_length_mla": head,
        "attention.kv_lora_rank": latent, "attention.q_lora_rank": 768, "rope.dimension_count": rope,
        "expert_count": count, "expert_used_count": 6, "expert_feed_forward_length": inner, "expert_shared_count": 2,
        "leading_dense_block_count": 1, "expert_weights_scale": 1.0, "expert_gating_func": 1,
    }  # fmt: skip
    return "deepseek2", {**_common(width, layers, heads, 1, latent + rope, 10_944), **more}, found, 16_384


def lfm2(width: int, layers: int, heads: int, inner: int) -> Model:
    """Short convolutions, and attention in every third layer."""
    found, groups = _ends(width, 32_768, True, "token_embd_norm"), []
    for n in range(layers):
        at = f"blk.{n}"
        found |= _network(at, width, inner) | _norms(at, width, "attn_norm", "ffn_norm")
        groups.append(8 if n % 3 == 2 else 0)
        if groups[-1]:
            found |= _attention(at, width, heads, 8, width // heads, normed=True)
        else:
            found |= {
                f"{at}.shortconv.conv.weight": (width, 3),
                f"{at}.shortconv.in_proj.weight": (3 * width, width),
                f"{at}.shortconv.out_proj.weight": (width, width),
            }
    common = _common(width, layers, heads, groups, width // heads, inner)
    return "lfm2", {**common, "shortconv.l_cache": 3}, found, 32_768


def qwen35(width: int, layers: int, inner: int, heads: int, vocabulary: int) -> Model:
    """Gated delta nets, and gated attention in every fourth layer."""
    state, groups, kernel = 128, 16, 4
    keys, values = state * groups, state * heads
    found = _ends(width, vocabulary, tied=True)
    for n in range(layers):
        at = f"blk.{n}"
        found |= _network(at, width, inner) | _norms(at, width, "attn_norm", "post_attention_norm")
        if n % 4 == 3:
            found |= _attention(at, width, 8, 2, 256, normed=True, gated=True)
        else:
            found |= {
                f"{at}.attn_qkv.weight": (2 * keys + values, width), f"{at}.attn_gate.weight": (values, width),
                f"{at}.ssm_conv1d.weight": (2 * keys + values, kernel), f"{at}.ssm_dt.bias": (heads,),
                f"{at}.ssm_a": (heads,), f"{at}.ssm_beta.weight": (heads, width),
                f"{at}.ssm_alpha.weight": (heads, width), f"{at}.ssm_norm.weight": (state,),
                f"{at}.ssm_out.weight": (width, values),
            }  # fmt: skip
    more = {"full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0]}
    more |= recurrent(kernel, values, state, heads, groups)
    return "qwen35", {**_common(width, layers, 8, 2, 256, inner), **more}, found, vocabulary


def nemotron_h(width: int, layers: int) -> Model:
    """Mamba-2, networks and now and then attention, each a layer of its own."""
    state, groups, heads, kernel, inner = 128, 8, 48, 4, 3840
    found, kv, networks = _ends(width, 16_384, tied=False), [], []
    for n in range(layers):
        at = f"blk.{n}"
        found |= _norms(at, width, "attn_norm")
        kv.append(8 if n % 5 == 4 else 0)
        networks.append(0 if kv[-1] or n % 2 else 4 * width)
        if kv[-1]:
            found |= _attention(at, width, 16, 8, 128, normed=False)
        elif networks[-1]:
            found |= {f"{at}.ffn_up.weight": (4 * width, width), f"{at}.ffn_down.weight": (width, 4 * width)}
        else:
            found |= _mamba2(at, width, state, groups, heads, kernel, inner)
    more = recurrent(kernel, inner, state, heads, groups)
    return "nemotron_h", {**_common(width, layers, 16, kv, 128, networks), **more}, found, 16_384


def mamba2(width: int, layers: int) -> Model:
    found = _ends(width, 50_288, tied=True)
    for n in range(layers):
        found |= _norms(f"blk.{n}", width, "attn_norm")
        found |= _mamba2(f"blk.{n}", width, 128, 1, width // 32, 4, 2 * width)
    more = recurrent(4, 2 * width, 128, width // 32, 1)
    return "mamba2", {**_common(width, layers, 0, 0, 64, 0), **more}, found, 50_288


_POSTS: Final = ("post_attention_norm", "post_ffw_norm")
# widths of real models, with fewer layers: llama.cpp maps and reads whole files, holes too
MODELS: Final[Mapping[str, Callable[[], Model]]] = MappingProxyType(
    {
        "llama-135m": lambda: dense("llama", 576, 12, 9, 3, 64, 1536, 49_152, True),
        "llama-1b": lambda: dense("llama", 2048, 2, 32, 8, 64, 8192, 16_384, False),
        "qwen3-0.6b": lambda: dense("qwen3", 1024, 4, 16, 8, 128, 3072, 65_536, True),
        "qwen3-4b": lambda: dense("qwen3", 2560, 2, 32, 8, 128, 9728, 16_384, True),
        "gemma3-270m": lambda: dense(
            "gemma3", 640, 6, 4, 1, 256, 2048, 65_536, True, *_POSTS, attention__sliding_window=512
        ),
        "gemma2-2b": lambda: dense(
            "gemma2", 2304, 2, 8, 4, 256, 9216, 16_384, True, *_POSTS, attention__sliding_window=4096
        ),
        "qwen3moe-small": lambda: qwen3moe(768, 3, 12, 64, 32, 4, 384),
        "qwen3moe-30b": lambda: qwen3moe(2048, 2, 32, 128, 32, 8, 768),
        "deepseek2-lite": lambda: deepseek2(2),
        "lfm2-350m": lambda: lfm2(1024, 6, 16, 4608),
        "lfm2-1.2b": lambda: lfm2(2048, 3, 32, 8192),
        "qwen35-0.8b": lambda: qwen35(1024, 4, 3584, 16, 65_536),
        "qwen35-2b": lambda: qwen35(1536, 4, 4096, 32, 32_768),
        "nemotron_h": lambda: nemotron_h(1536, 5),
        "mamba2-370m": lambda: mamba2(1024, 12),
    }
)
