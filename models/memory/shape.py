"""The parts of a model that take memory: weights, KV cells and states, and the live tensors of a pass.

The sizes of caches follow llama.cpp: ``llama_kv_cache`` and ``llama_memory_recurrent``, and ``n_embd_r`` and
``n_embd_s`` of ``src/llama-hparams.cpp``. Widths come from the shapes of the tensors, since layers may differ.

llama.cpp places the tensors of its graph in one buffer, each in the smallest gap that fits (ggml-alloc). So the buffer
is as large as the peak of live tensors, plus a little fragmentation. The functions below compute these peaks in numbers
per token of a pass. They follow llama.cpp's graphs (``src/llama-graph.cpp``, ``src/models``) and were checked against
the buffer sizes that it logs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final

from slipstream.models.gguf.architectures import EXPERTS, ROLLS_BACK
from slipstream.models.gguf.mtp import without_mtp
from slipstream.models.gguf.parse import TensorInfo
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.rope import context_range

Shapes = Mapping[str, tuple[int, ...]]
"""A layer's tensors by name, without ``blk.N.``; dimensions in ggml's order: input width, then output width."""


def attention(width: int, query: int, keys: int, values: int, latent: int = 0) -> int:
    """Peak of flash attention: residual, input, queries, attention output, keys and values.

    Args:
        width: Width of a hidden state.
        query: Width of all queries.
        keys: Width of all keys.
        values: Width of all values.
        latent: Width of all queries of latent attention (MLA), each as wide as the cached vector; 0 without it.
    """
    return 2 * width + 4 * latent if latent else 2 * width + 2 * query + keys + values


def feed_forward(shapes: Shapes, width: int, query: int, used: int) -> int:
    """Peak of the feed-forward part, which cannot reuse the queries' buffer.

    Args:
        shapes: The layer's tensors.
        width: Width of a hidden state.
        query: Width of all queries.
        used: Experts used per token.
    """
    found = [0]
    if "ffn_down.weight" in shapes:
        inner = shapes["ffn_down.weight"][0]
        gated = "ffn_gate.weight" in shapes or shapes.get("ffn_up.weight", (0, 0))[1] == 2 * inner
        found.append((3 if gated else 2) * inner + 3 * width + (query if query < inner else 0))
    if "ffn_down_exps.weight" in shapes:
        inner, outer = used * shapes["ffn_down_exps.weight"][0], used * width
        found.append(3 * inner + query + 3 * width + (outer if outer > 2 * inner else 0))
    return max(found)


def apart_experts(shapes: Shapes, width: int, used: int) -> tuple[int, int]:
    """Peaks if the experts are computed on a different device than the rest of their layer.

    Args:
        shapes: The layer's tensors.
        width: Width of a hidden state.
        used: Experts used per token.

    Returns:
        The peak on the layer's device, which sums the experts' outputs, and the peak on the experts' device.
    """
    inner, outer = used * shapes.get("ffn_down_exps.weight", (0,))[0], used * width
    return outer + 3 * width, max(3 * inner, inner + outer) + width


def recurrent(shapes: Shapes, width: int, groups: int, heads: int) -> int:
    """Peak of a recurrent part, without its states.

    Args:
        shapes: The layer's tensors.
        width: Width of a hidden state.
        groups: Number of key heads.
        heads: Number of value heads.
    """
    if "shortconv.in_proj.weight" in shapes:
        return 3 * width + shapes["shortconv.in_proj.weight"][1]
    if "time_mix_w1.weight" in shapes:
        return 12 * width
    if "ssm_conv1d.weight" not in shapes or "ssm_out.weight" not in shapes:
        return 0
    inner, mixed = shapes["ssm_out.weight"][0], shapes["ssm_conv1d.weight"][1]
    if "ssm_in.weight" in shapes:  # Mamba
        return shapes["ssm_in.weight"][1] + 2 * mixed + inner + 3 * width
    repeated = 2 * inner if heads > groups else 0  # gated delta net: queries and keys are repeated for each value head
    return 5 * mixed // 2 + repeated + 2 * width


_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\..")
_EXPERTS: Final = re.compile(EXPERTS)
_LAYERS_WITH_KV: Final = MappingProxyType({"gemma3n": 20})
"""Number of first layers with their own keys and values, where the file does not give it."""
_STATES: Final = ("ssm_conv1d.weight", "ssm_conv1d_q.weight", "shortconv.conv.weight", "time_mix_w1.weight")
"""Tensors that only a recurrent layer has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer."""

    weights: int  # bytes of its weights
    keys: int  # numbers of its keys in the KV cache per token
    values: int  # numbers of its values in the KV cache per token
    state: int = 0  # numbers of its recurrent state
    network: int = 0  # peak of live numbers per token of a pass, in the feed-forward part
    attending: int = 0  # the same in its attention
    mixing: int = 0  # the same in its recurrent part
    experts: int = 0  # bytes of its experts
    around: int = 0  # like ``network``, on the layer's device if its experts are computed on another device
    apart: int = 0  # the same, on the device of the experts


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a model that matter for memory."""

    layers: tuple[Layer, ...]
    embedding: int  # bytes of the tensors before the layers, which stay in main memory
    output: int  # bytes of the tensors after the layers
    copied: int  # bytes of a tied embedding, which is copied to a GPU as the output matrix; else 0
    width: int  # width of a hidden state
    vocabulary: int  # number of tokens
    heads: int = 32  # attention heads of a layer
    packable: bool = True  # whether its KV cache can be quantized; needs flash attention and heads of 32 * n numbers
    caches: int = 1  # number of KV caches, each with a mask: sliding windows have their own
    copies: bool = False  # whether it keeps copies of states for rollback
    n_ctx_train: int = 0  # context that it was trained with; 0 if unknown
    longest: int = 0  # longest context that it supports; 0 if unknown
    params: int = 0

    @property
    def recurrent(self) -> bool:
        """Whether it is recurrent or hybrid; it then has one sequence with a state."""
        return any(layer.state for layer in self.layers)

    @property
    def weights(self) -> int:
        return self.embedding + self.output + sum(layer.weights for layer in self.layers)


def shape_of(header: Header) -> Shape:
    """Derives a model's shape from its header, without the MTP layers that llama.cpp would not load."""
    blocks: dict[int, list[TensorInfo]] = defaultdict(list)
    embedding = output = copied = 0
    tied = True
    for tensor in header.tensors:
        if block := _BLOCK.match(tensor.name):
            blocks[int(block[1])].append(tensor)
        elif tensor.name.startswith("output"):
            output += tensor.nbytes
            tied = tied and tensor.name != "output.weight"
        else:
            embedding += tensor.nbytes
            copied = tensor.nbytes if tensor.name == "token_embd.weight" else copied
    predicting = header.number("nextn_predict_layers") or 0
    unused = predicting if without_mtp(header) else 0
    count = max(0, min((header.n_layer or 0) - unused, 1 + max(blocks, default=-1)))
    heads = _per_layer(header, "attention.head_count", count)
    width = header.n_embd or 0
    elsewhere = predicting - unused  # MTP keeps its cells in a separate context
    trunk = count - elsewhere - (header.number("attention.shared_kv_layers") or 0)
    last = _LAYERS_WITH_KV.get(header.architecture, trunk)
    own = width // max(heads, default=1) if max(heads, default=0) > 0 else 0
    layers = tuple(_layer(header, blocks[n], n, heads, caches=n < last) for n in range(count))
    return Shape(
        layers=layers,
        embedding=embedding,
        output=output,
        copied=copied if tied else 0,
        width=width,
        vocabulary=header.n_vocab,
        heads=max(heads, default=0),
        packable=header.architecture != "grok"  # it has no flash attention
        and all((header.number(f"attention.{name}_length") or own) % 32 == 0 for name in ("key", "value")),
        caches=2 if header.number("attention.sliding_window") else 1,
        copies=header.architecture in ROLLS_BACK,
        n_ctx_train=header.n_ctx_train or 0,
        longest=context_range(header).longest,
        params=sum(prod(tensor.shape) for tensor in header.tensors),
    )


def _layer(header: Header, tensors: Sequence[TensorInfo], number: int, heads: Sequence[int], caches: bool) -> Layer:
    shapes = {tensor.name.split(".", 2)[2]: (*tensor.shape, 1) for tensor in tensors}
    state = _state(header, shapes, heads[number])
    keys, values = _kept(header, shapes, heads[number], number) if caches else (0, 0)
    width = header.n_embd or 0
    query = shapes.get("attn_q.weight", shapes.get("attn_q_b.weight", (0, 0)))[1]
    network = feed_forward(shapes, width, query, header.number("expert_used_count") or 0)
    latent = 0 if values else heads[number] * keys
    attending = attention(width, query or keys, keys, values, latent) if keys else 0
    groups, ranks = header.number("ssm.group_count") or 1, header.number("ssm.time_step_rank") or 1
    mixing = recurrent(shapes, width, groups, ranks)
    experts = sum(tensor.nbytes for tensor in tensors if _EXPERTS.search(tensor.name))
    around, apart = apart_experts(shapes, width, header.number("expert_used_count") or 0) if experts else (0, 0)
    weights = sum(tensor.nbytes for tensor in tensors)
    return Layer(weights, keys, values, state, network, attending, mixing, experts, around, apart)


def _kept(header: Header, shapes: Shapes, heads: int, number: int) -> tuple[int, int]:
    """Numbers in the KV cache per token, as keys and as values."""
    if "attn_kv_a_mqa.weight" in shapes:
        if header.number("attention.key_length_mla"):
            return shapes["attn_kv_a_mqa.weight"][1], 0
        return heads * (header.number("attention.key_length") or 0), heads * (
            header.number("attention.value_length") or 0
        )
    if "attn_k.weight" in shapes:
        keys = shapes["attn_k.weight"][1]
        return keys, shapes.get("attn_v.weight", (0, keys))[1]
    if "attn_qkv.weight" not in shapes or any(name in shapes for name in _STATES):
        return 0, 0
    groups = _per_layer(header, "attention.head_count_kv", number + 1, heads)[number]
    own = (header.n_embd or 0) // max(1, heads)
    lengths = (header.number(f"attention.{name}_length") or own for name in ("key", "value"))
    key, value = (groups * length for length in lengths)
    return key, value


def _state(header: Header, shapes: Shapes, heads: int) -> int:
    """Numbers of a recurrent layer's states, the convolution's included."""
    if not any(name in shapes for name in _STATES):
        return 0
    width = header.n_embd or 0
    kernel = max(0, (header.number("ssm.conv_kernel") or 0) - 1)
    if "time_mix_w1.weight" in shapes:
        return width * ((header.number("token_shift_count") or 2) + (header.number("wkv.head_size") or 0))
    if "shortconv.conv.weight" in shapes:
        return width * ((header.number("shortconv.l_cache") or 1) - 1)
    if "ssm_conv1d_q.weight" in shapes:
        head = header.number("kda.head_dim") or 0
        return heads * head * (3 * (kernel or 3) + head)
    inner, size = header.number("ssm.inner_size") or 0, header.number("ssm.state_size") or 0
    return kernel * (inner + 2 * (header.number("ssm.group_count") or 0) * size) + size * inner


def _per_layer(header: Header, key: str, count: int, default: int = 0) -> list[int]:
    """A value of each layer, from a file that gives it once or per layer."""
    value = header.metadata.get(f"{header.architecture}.{key}", default)
    if isinstance(value, list):
        numbers = [item if isinstance(item, int) else default for item in value[:count]]
        return numbers + [default] * (count - len(numbers))
    return [value if isinstance(value, int) else default] * count


_TYPICAL_BITS: Final = 4.9  # bits per weight of Q4_K_M, assumed if the number of parameters is unknown
# typical dense models; the first row with enough parameters applies
_TYPICAL: Final = (
    # maximum parameters, layers, hidden width, key width, feed-forward width, vocabulary
    (0.15e9, 30, 576, 192, 1536, 49_152),  # SmolLM2 135M
    (0.4e9, 32, 960, 320, 2560, 49_152),  # SmolLM2 360M
    (0.8e9, 28, 1024, 1024, 3072, 151_936),  # Qwen3 0.6B
    (1.5e9, 16, 2048, 512, 8192, 128_256),  # Llama 3.2 1B
    (2.2e9, 28, 2048, 1024, 6144, 151_936),  # Qwen3 1.7B
    (3.5e9, 28, 3072, 1024, 8192, 128_256),  # Llama 3.2 3B
    (5.5e9, 36, 2560, 1024, 9728, 151_936),  # Qwen3 4B
    (10e9, 36, 4096, 1024, 12_288, 151_936),  # Qwen3 8B
    (20e9, 40, 5120, 1024, 17_408, 151_936),  # Qwen3 14B
    (50e9, 64, 5120, 1024, 25_600, 151_936),  # Qwen3 32B
    (100e9, 80, 8192, 1024, 28_672, 128_256),  # Llama 3.3 70B
    (float("inf"), 88, 12_288, 1024, 28_672, 32_768),  # Mistral Large 123B
)


def rough_shape(size: int, params: int = 0, n_ctx_train: int = 0) -> Shape:
    """Estimates a model's shape from its size.

    Args:
        size: Bytes of its weights.
        params: Number of its parameters; 0 if unknown.
        n_ctx_train: Context that it was trained with; 0 if unknown.
    """
    params = params or round(8 * size / _TYPICAL_BITS)
    _, layers, width, keys, inner, vocabulary = next(row for row in _TYPICAL if params <= row[0])
    embedding = min(size // 4, size * vocabulary * width // max(1, params))
    each = Layer((size - 2 * embedding) // layers, keys, keys, network=3 * inner + 4 * width)
    return Shape(
        layers=(each,) * layers,
        embedding=embedding,
        output=size - embedding - layers * each.weights,
        copied=0,
        width=width,
        vocabulary=vocabulary,
        n_ctx_train=n_ctx_train,
        longest=n_ctx_train,
        params=params,
    )
