"""What of a model takes memory: its layers, their weights, what they keep of each token, and what they compute in.

The sizes of caches follow llama.cpp: ``llama_kv_cache`` and ``llama_memory_recurrent``, and ``n_embd_r`` and
``n_embd_s`` of ``src/llama-hparams.cpp``. Widths are read off the shapes of the tensors: layers may differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final

from slipstream.models.fit_scratch import attention, feed_forward, recurrent
from slipstream.models.gguf import Header
from slipstream.models.gguf_parse import TensorInfo
from slipstream.models.mtp_check import without_mtp

Shapes = Mapping[str, tuple[int, ...]]
"""A layer's tensors by name, without their ``blk.N.``; sizes fastest first: the width of the input, of the output."""

_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\..")
_ROLLS_BACK: Final = frozenset(
    {"kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe"}
    | {"lfm2", "lfm2moe", "bailingmoe3"}
)
"""Architectures that keep copies of their states (``llm_arch_supports_rs_rollback`` of ``src/llama-arch.cpp``)."""
_FIRST_WITH_KV: Final = MappingProxyType({"gemma3n": 20})
"""Layers that have keys and values of their own, where the file does not say so."""
_STATES: Final = ("ssm_conv1d.weight", "ssm_conv1d_q.weight", "shortconv.conv.weight", "time_mix_w1.weight")
"""Tensors that only a recurrent layer has."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        weights: Bytes of its weights.
        keys: Numbers that it keeps of each token as keys.
        values: Numbers that it keeps of each token as values.
        state: Numbers of its recurrent state.
        network: Numbers that are alive at once for each token of a pass, in the network after its attention.
        attending: The same in its attention.
        mixing: The same where it works on its state.
    """

    weights: int
    keys: int
    values: int
    state: int = 0
    network: int = 0
    attending: int = 0
    mixing: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """A model, as far as memory is concerned.

    Attributes:
        layers: Its layers, the first one first.
        embedding: Bytes of what stands before them: it stays in the machine's memory.
        output: Bytes of what stands after them.
        copied: Bytes of the embedding where the output multiplies by it, so that a GPU gets a copy.
        width: Of a hidden state.
        vocabulary: Number of tokens.
        heads: Heads of a layer's attention.
        packs: Whether its heads can be kept as Q8_0, which takes 32 numbers at a time.
        caches: Caches of keys and values, each with a mask: sliding windows have one of their own.
        copies: Whether states are kept so that rows can be taken back.
        n_ctx_train: Tokens that it was trained on; 0 if not known.
        params: Number of parameters.
    """

    layers: tuple[Layer, ...]
    embedding: int
    output: int
    copied: int
    width: int
    vocabulary: int
    heads: int = 32
    packs: bool = True
    caches: int = 1
    copies: bool = False
    n_ctx_train: int = 0
    params: int = 0

    @property
    def recurrent(self) -> bool:
        """Whether it is recurrent or hybrid: one sequence, and a state for it."""
        return any(layer.state for layer in self.layers)

    @property
    def weights(self) -> int:
        """Bytes of all weights, each once."""
        return self.embedding + self.output + sum(layer.weights for layer in self.layers)


def shape_of(header: Header) -> Shape:
    """Reads a model's shape off its header; what llama.cpp would not load (unused MTP layers) is left out."""
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
    unused = 0 if (served := not without_mtp(header)) else header.number("nextn_predict_layers") or 0
    count = max(0, min((header.n_layer or 0) - unused, 1 + max(blocks, default=-1)))
    heads = _per_layer(header, "attention.head_count", count)
    width = header.n_embd or 0
    trunk = count - served - (header.number("attention.shared_kv_layers") or 0)  # MTP keeps its cells elsewhere
    last = _FIRST_WITH_KV.get(header.architecture, trunk)
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
        packs=all((header.number(f"attention.{name}_length") or own) % 32 == 0 for name in ("key", "value")),
        caches=2 if header.number("attention.sliding_window") else 1,
        copies=header.architecture in _ROLLS_BACK,
        n_ctx_train=header.n_ctx_train or 0,
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
    return Layer(sum(tensor.nbytes for tensor in tensors), keys, values, state, network, attending, mixing)


def _kept(header: Header, shapes: Shapes, heads: int, number: int) -> tuple[int, int]:
    """Numbers that attention keeps of a token as keys, and as values."""
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
    """Numbers of a recurrent layer's state: its convolution's and its own."""
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
    """A number that a file gives once or for every layer."""
    value = header.metadata.get(f"{header.architecture}.{key}", default)
    if isinstance(value, list):
        numbers = [item if isinstance(item, int) else default for item in value[:count]]
        return numbers + [default] * (count - len(numbers))
    return [value if isinstance(value, int) else default] * count
