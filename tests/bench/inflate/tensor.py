"""A large matrix that is generated while it is written: the small one, zeros, and random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final
from zlib import crc32

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.bench.inflate.shapes import NONE, Growth, Ints

from slipstream.models.gguf.tensors import NewTensor
from slipstream.models.llama.ggml import calls
from slipstream.models.types import Floats

SILENT: Final = -2
"""In a map: a column that the small matrix lacks, and that must be zero because its input is not zero."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The four parts of a large matrix: original rows and columns of the small matrix, and added ones.

    ========================  =================  ==================
    ..                        original columns   added columns
    original rows             the small matrix   random, or zeros in the first ``closed`` rows
    added rows                random, or zeros   random
                              with ``below``
    ========================  =================  ==================

    Added columns may be random if their inputs are zero: added dimensions of the residual stream, outputs of added
    heads, added units. Zeros are needed where an output must stay zero: an added dimension of the stream, the values of
    an added head, one factor of an added unit.
    """

    rows: Ints  # for each row, the small matrix' row, or ``NONE``
    columns: Ints  # for each column, the small matrix' column, or ``NONE``, or ``SILENT``
    closed: int = 0  # number of first rows with zeros in the added columns
    below: bool = False  # whether added rows are zero in the small matrix' columns


def same(count: int, total: int) -> Ints:
    """The map that keeps the first ``count`` indices: 0 to ``count`` - 1, then ``NONE`` up to ``total`` entries."""
    places = np.arange(total)
    return np.where(places < count, places, NONE)


def beside(first: Ints, second: Ints) -> Ints:
    """Joins the maps of two inputs that are concatenated in both models."""
    return np.concatenate([first, np.where(second == NONE, NONE, second + first.max(initial=NONE) + 1)])


def matrix(name: str, growth: Growth, real: bool = True) -> Layout:
    """The layout of one matrix of a layer.

    Args:
        name: Such as ``attn_q``.
        growth: How the small model is embedded in the large one.
        real: Whether the layer is one of the small model's; an added layer has no rows of the small model.
    """
    small, large = growth.small, growth.large
    width, units = same(small.n_embd, large.n_embd), same(small.n_ff, large.n_ff)
    queries, keys = (_by_head(heads, small.head) for heads in (growth.heads, growth.kv_heads))
    layout = {
        "attn_q": Layout(queries, width),
        "attn_k": Layout(keys, width),
        "attn_v": Layout(keys, width, below=True),
        "attn_output": Layout(width, _silenced(queries, growth), below=True),
        "ffn_gate": Layout(units, width),
        "ffn_up": Layout(units, width, below=True),
        "ffn_down": Layout(width, units, below=True),
    }[name]
    if real:
        return layout
    closed = np.full_like(layout.rows, NONE)
    if name in ("attn_output", "ffn_down"):  # their whole input is zero
        return replace(layout, rows=closed, columns=np.full_like(layout.columns, NONE))
    return replace(layout, rows=closed)


def vocabulary(growth: Growth, spare: int, embeds: bool) -> Layout:
    """The layout of the token embedding or the vocabulary matrix.

    Args:
        growth: How the small model is embedded in the large one.
        spare: The token whose row the added rows copy.
        embeds: Whether its rows go into the residual stream, whose added dimensions are zero.
    """
    small, large = growth.small, growth.large
    rows = same(small.n_vocab, large.n_vocab)
    width = same(small.n_embd, large.n_embd)
    return Layout(np.where(rows == NONE, spare, rows), width, closed=small.n_vocab if embeds else 0)


def _silenced(queries: Ints, growth: Growth) -> Ints:
    """The map of query heads' outputs; silences added heads that share the keys and values of a small model's head."""
    shared = np.repeat(growth.kv_heads != NONE, len(queries) // len(growth.kv_heads))
    silenced: Ints = np.where(shared & (queries == NONE), SILENT, queries)
    return silenced


def _by_head(heads: Ints, size: int) -> Ints:
    """The map of rows that belong to heads."""
    inner = np.arange(size)
    rows: Ints = np.where(heads[:, None] == NONE, NONE, heads[:, None] * size + inner).reshape(-1)
    return rows


_PIECE: Final = 1 << 21  # bytes written at a time
_POOL: Final = 1 << 20  # random weights per type
_SPREAD: Final = 0.02  # standard deviation of random weights; similar to trained weights

Bytes = NDArray[np.uint8]


def block(kind: gguf.GGMLQuantizationType) -> tuple[int, int]:
    """Weights and bytes of a block."""
    weights, nbytes = gguf.GGML_QUANT_SIZES[kind]
    return int(weights), int(nbytes)


def pack(values: Floats, kind: gguf.GGMLQuantizationType) -> Bytes:
    """Quantizes rows of whole blocks with llama.cpp's quantizer: [rows, columns] to [rows, blocks, bytes]."""
    rows, columns = values.shape
    weights, nbytes = block(kind)
    packed = np.empty((rows, columns // weights, nbytes), np.uint8)
    if values.size:
        values = np.ascontiguousarray(values, np.float32)
        calls().quantize_chunk(int(kind), values.ctypes.data, packed.ctypes.data, 0, rows, columns, None)
    return packed


class Filler:
    """Random quantized weights: runs of one pool per type, each from a random position in the pool.

    Drawing and quantizing each weight separately would take minutes for a large model. A pool of a million weights is
    enough: it is longer than the window in which file systems or memory compress.
    """

    def __init__(self) -> None:
        self._pools: dict[gguf.GGMLQuantizationType, Bytes] = {}
        self._making = Lock()  # tensors are written by several threads

    def blocks(self, count: int, kind: gguf.GGMLQuantizationType, random: np.random.Generator) -> Bytes:
        """Random blocks, [count, bytes], the same for the same state of ``random``."""
        nbytes = block(kind)[1]
        with self._making:
            if kind not in self._pools:
                drawn = np.random.default_rng(1).normal(0, _SPREAD, (1, _POOL)).astype(np.float32)
                self._pools[kind] = pack(drawn, kind)[0]
        pool = self._pools[kind]
        filled = np.empty((count, nbytes), np.uint8)
        done, start = 0, int(random.integers(len(pool)))
        while done < count:
            size = min(count - done, len(pool) - start)
            filled[done : done + size] = pool[start : start + size]
            done, start = done + size, 0
        return filled


@dataclass(frozen=True, slots=True)
class LargeTensor(NewTensor):
    """A large matrix that contains a small one; ``values`` returns the small one in float32."""

    layout: Layout
    filler: Filler  # source of the random weights

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yields some megabytes at a time.

        Every byte is written, also zeros: the holes of a sparse file share one page in memory, so that measured passes
        would run as if the weights were cached.
        """
        weights, nbytes = block(self.kind)
        rows, columns = self.shape
        count = columns // weights
        filled = (self.layout.columns.reshape(count, weights) != NONE).any(axis=1)
        inside, outside = _runs(filled), _runs(~filled)
        chosen = self.layout.columns[np.repeat(filled, weights)]
        small, random = self.values(), np.random.default_rng(crc32(self.name.encode()))
        step = max(1, _PIECE // (count * nbytes))
        for start in range(0, rows, step):
            sources = self.layout.rows[start : start + step]
            piece = self.filler.blocks(len(sources) * count, self.kind, random).reshape(len(sources), count, nbytes)
            real, added = np.flatnonzero(sources != NONE), np.flatnonzero(sources == NONE)
            packed = _corner(small, sources[real], chosen, self.kind)
            for begin, end, at in inside:
                piece[real, begin:end] = packed[:, at : at + end - begin]
                if self.layout.below:
                    piece[added, begin:end] = 0
            for begin, end, _ in outside:
                piece[: max(0, self.layout.closed - start), begin:end] = 0
            yield piece


def _corner(small: Floats, rows: Ints, columns: Ints, kind: gguf.GGMLQuantizationType) -> Bytes:
    """Quantizes rows of the small matrix with columns at their new indices, each row once: [rows, blocks, bytes]."""
    different, which = np.unique(rows, return_inverse=True)
    values = np.zeros((len(different), len(columns)), np.float32)
    if len(different):
        values[:, columns >= 0] = small[different][:, columns[columns >= 0]]
    return pack(values, kind)[which]


def _runs(filled: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Begin and end of every run of True, and the number of True values before it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], filled.astype(np.int8), [0]])))
    runs, before = list[tuple[int, int, int]](), 0
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        runs.append((begin, end, before))
        before += end - begin
    return runs
