"""The memory that an open model takes, on GPUs and in main memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from slipstream.models.memory.shape import Layer, Shape
from slipstream.models.types import KvType, pass_tokens

ROLLBACK: Final = 8  # rows that a recurrent or hybrid model can roll back when a drafter is used
_PROJECTOR: Final = 1.4  # bytes of memory per byte of an mmproj file: weights, and buffers that grow with the image
_PAGE: Final = 256  # llama.cpp rounds contexts up to multiples of it
_COPIES: Final = 4  # GGML_SCHED_MAX_COPIES: copies of a pass's inputs if several GPUs hold the whole model


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of an open model and its draft model, in bytes."""

    weights: int
    kv: int  # the KV cache, and the states of recurrent layers
    compute: int  # compute buffers and logits
    on: tuple[int, ...] = ()  # the part of all these on each GPU

    @property
    def gpu(self) -> int:
        return sum(self.on)

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    def __add__(self, other: Need) -> Need:
        on = tuple(map(sum, zip_longest(self.on, other.on, fillvalue=0)))
        return Need(self.weights + other.weights, self.kv + other.kv, self.compute + other.compute, on)


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
        """Cells of the KV cache."""
        return -(-self.n_ctx // _PAGE) * _PAGE

    @property
    def batch(self) -> int:
        """Maximum tokens of a pass."""
        return min(pass_tokens(self.flash), self.cells)


def kv_bytes(layer: Layer, shape: Shape, context: ContextSize) -> int:
    """Bytes of a layer's KV cells and recurrent states."""
    copies = 1 + context.rollback if shape.copies else 1
    per_cell = sum(_bytes_of(numbers, context.kv) for numbers in (layer.keys, layer.values))
    return context.cells * per_cell + 4 * layer.state * copies


def compute_bytes(shape: Shape, context: ContextSize, cpu_experts: int = 0) -> int:
    """Bytes of the compute buffer: the peak of a layer, or of the computation of the logits.

    Args:
        cpu_experts: Number of first layers whose experts are computed on another device.
    """
    batch, rows = context.batch, max(context.rows, context.leaves)
    copies = 1 + context.rollback if shape.copies else 1
    attends = any(layer.keys for layer in shape.layers)
    scores = 0 if context.flash or not attends else shape.heads * context.cells * batch
    away = [layer.experts and number < cpu_experts for number, layer in enumerate(shape.layers)]
    networks = [layer.around if gone else layer.network for layer, gone in zip(shape.layers, away, strict=True)]
    peaks = [batch * network for network in networks[:-1]]
    peaks += [min(rows, batch) * network for network in networks[-1:]]  # only rows with logits
    peaks += [batch * layer.attending + scores for layer in shape.layers]
    peaks += [batch * layer.mixing + copies * layer.state for layer in shape.layers]
    mask = shape.caches * context.cells * batch * (2 if context.flash else 4) if attends else 0
    in_layers = 4 * max(peaks, default=0) + mask
    at_logits = 4 * (min(rows, batch) * (shape.vocabulary + shape.width) + batch * shape.width)
    return max(in_layers, at_logits) + 32 * batch


def logits_bytes(shape: Shape, context: ContextSize) -> int:
    return 4 * max(context.rows, 1 if shape.recurrent else context.leaves) * shape.vocabulary


def need_of(
    shape: Shape,
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
    graph = compute_bytes(shape, context, cpu_experts if any(shares) else 0) if measured is None else measured
    logits = logits_bytes(shape, context)
    weights, kv = shape.weights, sum(kv_bytes(layer, shape, context) for layer in shape.layers)
    if not any(shares):
        return Need(weights, kv, graph + logits, (0,) * len(shares))
    first = len(shape.layers) + 1 - sum(shares)
    sizes = offloaded(shape, context, cpu_experts)[first:]
    apart = [layer for layer in shape.layers[first:cpu_experts] if layer.experts]
    inputs = 4 * context.batch * shape.width + shape.caches * context.cells * context.batch * 2
    held = graph + ((_COPIES - 1) * inputs if not first and not apart and sum(map(bool, shares)) > 1 else 0)
    on, at = [], 0
    for share in shares:
        on.append(sum(sizes[at : at + share]) + (held if share else 0))
        at += share
    near = shape.layers[:first]
    lent = [layer.weights for layer in near] + [layer.experts for layer in apart if borrows]
    borrowed = max(lent, default=0) // 2
    on[0] += borrowed
    few = min(context.batch, max(context.rows, context.leaves))  # rows with logits; the last layer computes only these
    routed = 4 * max(
        ((few if layer is shape.layers[-1] else context.batch) * layer.apart for layer in apart), default=0
    )
    beside = graph if near else max(min(graph, inputs), routed + inputs - 4 * context.batch * shape.width)
    graphs = sum(held for share in shares if share)
    return Need(weights + shape.copied, kv, graphs + beside + borrowed + logits, tuple(on))


def offloaded(shape: Shape, context: ContextSize, cpu_experts: int = 0) -> list[int]:
    """Bytes that each layer takes on a GPU, with its KV cache; the last entry is the output."""
    layers = [layer.weights + kv_bytes(layer, shape, context) for layer in shape.layers]
    for number, layer in enumerate(shape.layers[:cpu_experts]):
        layers[number] -= layer.experts
    return [*layers, shape.output + shape.copied]


def _bytes_of(numbers: int, kv: KvType) -> int:
    """Bytes of ``numbers`` numbers in a KV cache of a type; blocks of 32 have a scale of two bytes."""
    return numbers * {"f32": 128, "f16": 64, "q8_0": 34, "q4_0": 18}[kv] // 32


def projector_bytes(path: Path | None) -> int:
    """Memory that an mmproj file takes; 0 for none."""
    return int(_PROJECTOR * path.stat().st_size) if path and path.exists() else 0
