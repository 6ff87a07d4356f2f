"""The memory that an open model takes, on GPUs and in main memory: weights, KV cells and states, compute buffers.

The sizes of caches follow llama.cpp: ``llama_kv_cache`` and ``llama_memory_recurrent``, and ``n_embd_r`` and
``n_embd_s`` of ``src/llama-hparams.cpp``. Widths come from the shapes of the tensors, since layers may differ. The
compute buffer is a plain estimate here; before a model is loaded, llama.cpp measures it (``llama.dry_run``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.models.gguf.architectures import EXPERTS, ROLLS_BACK, without_mtp
from slipstream.models.gguf.parse import TensorInfo
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.rope import context_range
from slipstream.models.types import KvType, pass_tokens

ROLLBACK: Final = 8  # rows that a recurrent or hybrid model can roll back when a drafter is used
_PROJECTOR: Final = 1.4  # bytes of memory per byte of an mmproj file: weights, and buffers that grow with the image
_PAGE: Final = 256  # llama.cpp rounds contexts up to multiples of it
_COPIES: Final = 4  # GGML_SCHED_MAX_COPIES: copies of a pass's inputs if several GPUs hold the whole model
_BYTES: Final = MappingProxyType({"f32": 128, "f16": 64, "q8_0": 34, "q4_0": 18})  # bytes of 32 numbers in a KV cache
_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\..")
_EXPERTS: Final = re.compile(EXPERTS)
_LAYERS_WITH_KV: Final = MappingProxyType({"gemma3n": 20})
"""Number of first layers with their own keys and values, where the file does not give it."""
_STATES: Final = ("ssm_conv1d.weight", "ssm_conv1d_q.weight", "shortconv.conv.weight", "time_mix_w1.weight")
"""Tensors that only a recurrent layer has."""
_WIDE: Final = ("attn_q.weight", "attn_qkv.weight", "ssm_in.weight", "shortconv.in_proj.weight", "time_mix_w1.weight")
"""Matrices whose outputs may be the widest tensors of a layer, beside those of the feed-forward part."""
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
Shapes = Mapping[str, tuple[int, ...]]
"""A layer's tensors by name, without ``blk.N.``; dimensions in ggml's order: input width, then output width."""


@dataclass(frozen=True, slots=True)
class LayerSize:
    weights: int  # bytes of its weights
    keys: int  # numbers of its keys in the KV cache per token
    values: int  # numbers of its values in the KV cache per token
    live: int  # numbers per token of a pass that exist at the same time, estimated
    state: int = 0  # numbers of its recurrent state
    experts: int = 0  # bytes of its experts


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The properties of a model that matter for memory."""

    layers: tuple[LayerSize, ...]
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


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of an open model and its draft model, in bytes."""

    weights: int
    kv: int  # the KV cache, and the states of recurrent layers
    compute: int  # compute buffers and logits
    on: tuple[int, ...] = ()  # the part of all these on each GPU
    extras: int = 0  # the draft model with its cache and buffers, heads, adapters and the image encoder

    @property
    def gpu(self) -> int:
        return sum(self.on)

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute + self.extras

    def beside(self, extras: int, on: Sequence[int]) -> Need:
        """Adds what is loaded beside a model: its bytes, and the part of them on each GPU."""
        return replace(self, extras=self.extras + extras, on=tuple(map(sum, zip_longest(self.on, on, fillvalue=0))))


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The options of a context that matter for memory; see ``ContextOptions``."""

    n_ctx: int  # context in tokens
    kv: KvType = "f16"  # type of the KV cache
    rows: int = 64  # maximum rows of one evaluation
    leaves: int = 16  # maximum leaves of a tree
    rollback: int = ROLLBACK  # rows that a hybrid model can roll back
    flash: bool = True  # whether flash attention is on

    @property
    def cells(self) -> int:
        return -(-self.n_ctx // _PAGE) * _PAGE

    @property
    def batch(self) -> int:
        """Maximum tokens of a pass."""
        return min(pass_tokens(self.flash), self.cells)


def kv_bytes(layer: LayerSize, size: ModelSize, context: ContextSize) -> int:
    """Bytes of a layer's KV cells and recurrent states."""
    per_cell = sum(numbers * _BYTES[context.kv] // 32 for numbers in (layer.keys, layer.values))
    return context.cells * per_cell + 4 * layer.state * _copies(size, context)


def _copies(size: ModelSize, context: ContextSize) -> int:
    return 1 + context.rollback if size.copies else 1


def compute_bytes(size: ModelSize, context: ContextSize) -> int:
    """Estimates the bytes of the compute buffer: the live tensors of a layer with its mask, or the logits."""
    batch, attends = context.batch, any(layer.keys for layer in size.layers)
    live = max((batch * each.live + _copies(size, context) * each.state for each in size.layers), default=0)
    if attends and not context.flash:
        live = max(live, batch * (size.heads * context.cells + 4 * size.width))
    mask = size.caches * context.cells * batch * (2 if context.flash else 4) if attends else 0
    few = min(max(context.rows, context.leaves), batch)  # rows with logits
    at_logits = few * (size.vocabulary + size.width) + batch * size.width
    return max(4 * live + mask, 4 * at_logits)


def need_of(
    size: ModelSize,
    context: ContextSize,
    shares: Sequence[int] = (),
    measured: int | None = None,
    cpu_experts: int = 0,
    borrows: bool = True,
) -> Need:
    """Adds up the memory of a model that has some of its layers on GPUs.

    llama.cpp offloads the output first, then the last layers; the embedding stays in main memory. There is a compute
    buffer on every GPU with layers, and one in main memory. For large passes, the first GPU copies weights from main
    memory, one tensor at a time (``op_offload``). If several GPUs hold all layers, each keeps copies of the inputs of
    passes (llama.cpp's pipeline parallelism).

    Args:
        shares: Number of layers on each GPU, in order, the output counted as the last layer.
        measured: Bytes of the compute buffer as measured by llama.cpp, if known.
        cpu_experts: Number of first layers whose experts stay in main memory.
        borrows: Whether the first GPU copies these experts for large passes; a GPU of another machine does not.
    """
    graph = compute_bytes(size, context) if measured is None else measured
    logits = 4 * max(context.rows, 1 if size.recurrent else context.leaves) * size.vocabulary
    weights, kv = size.weights, sum(kv_bytes(layer, size, context) for layer in size.layers)
    if not any(shares):
        return Need(weights, kv, graph + logits, (0,) * len(shares))
    first = len(size.layers) + 1 - sum(shares)
    sizes = offloaded(size, context, cpu_experts)[first:]
    apart = [layer for layer in size.layers[first:cpu_experts] if layer.experts]
    inputs = 4 * context.batch * size.width + size.caches * context.cells * context.batch * 2
    held = graph + ((_COPIES - 1) * inputs if not first and not apart and sum(map(bool, shares)) > 1 else 0)
    on, at = [], 0
    for share in shares:
        on.append(sum(sizes[at : at + share]) + (held if share else 0))
        at += share
    near = size.layers[:first]
    borrowed = max([*(layer.weights for layer in near), *(layer.experts for layer in apart if borrows)], default=0) // 2
    on[0] += borrowed
    few = min(context.batch, max(context.rows, context.leaves))  # rows with logits; the last layer computes only these
    routed = [(few if layer is size.layers[-1] else context.batch) * (layer.live - 3 * size.width) for layer in apart]
    beside = inputs + 4 * (max(routed) - context.batch * size.width) if routed else min(graph, inputs)
    beside = graph if near else max(beside, min(graph, inputs))
    compute = sum(held for share in shares if share) + beside + borrowed + logits
    return Need(weights + size.copied, kv, compute, tuple(on))


def offloaded(size: ModelSize, context: ContextSize, cpu_experts: int = 0) -> list[int]:
    """Bytes that each layer takes on a GPU, with its KV cache; the last entry is the output."""
    layers = [layer.weights + kv_bytes(layer, size, context) for layer in size.layers]
    for number, layer in enumerate(size.layers[:cpu_experts]):
        layers[number] -= layer.experts
    return [*layers, size.output + size.copied]


def projector_bytes(path: Path | None) -> int:
    """Memory that an mmproj file takes; 0 for none."""
    return int(_PROJECTOR * path.stat().st_size) if path and path.exists() else 0


def size_of(header: Header) -> ModelSize:
    """Derives a model's sizes from its header, without the MTP layers that llama.cpp would not load."""
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
    return ModelSize(
        layers=tuple(_layer(header, blocks[n], n, heads[n], caches=n < last) for n in range(count)),
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


def _layer(header: Header, tensors: Sequence[TensorInfo], number: int, heads: int, caches: bool) -> LayerSize:
    shapes = {tensor.name.split(".", 2)[2]: (*tensor.shape, 1) for tensor in tensors}
    keys, values = _kept(header, shapes, heads, number) if caches else (0, 0)
    width, used = header.n_embd or 0, header.number("expert_used_count") or 0
    inner = used * shapes.get("ffn_down_exps.weight", (0,))[0]
    outer = used * width if used * width > 2 * inner > 0 else 0  # outputs of the experts, if no gap holds them
    latent = 0 if values else heads * keys  # of latent attention (MLA)
    widest = max(inner, latent, shapes.get("ffn_down.weight", (0,))[0], *(shapes.get(n, (0, 0))[1] for n in _WIDE))
    return LayerSize(
        weights=sum(tensor.nbytes for tensor in tensors),
        keys=keys,
        values=values,
        live=3 * widest + 4 * width + outer,
        state=_state(header, shapes, heads),
        experts=sum(tensor.nbytes for tensor in tensors if _EXPERTS.search(tensor.name)),
    )


def _kept(header: Header, shapes: Shapes, heads: int, number: int) -> tuple[int, int]:
    """Numbers in the KV cache per token, as keys and as values."""
    if "attn_kv_a_mqa.weight" in shapes:
        if header.number("attention.key_length_mla"):
            return shapes["attn_kv_a_mqa.weight"][1], 0
        key, value = (header.number(f"attention.{name}_length") or 0 for name in ("key", "value"))
        return heads * key, heads * value
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
    value = header.metadata.get(f"{header.architecture}.{key}", default)
    if isinstance(value, list):
        numbers = [item if isinstance(item, int) else default for item in value[:count]]
        return numbers + [default] * (count - len(numbers))
    return [value if isinstance(value, int) else default] * count


def rough_size(size: int, params: int = 0, n_ctx_train: int = 0) -> ModelSize:
    """Estimates a model's sizes from the bytes of its weights; what is 0 is unknown."""
    params = params or round(8 * size / _TYPICAL_BITS)
    _, layers, width, keys, inner, vocabulary = next(row for row in _TYPICAL if params <= row[0])
    embedding = min(size // 4, size * vocabulary * width // max(1, params))
    each = LayerSize((size - 2 * embedding) // layers, keys, keys, live=3 * inner + 4 * width)
    return ModelSize(
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
