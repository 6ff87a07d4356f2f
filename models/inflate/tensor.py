"""A large matrix that is made while it is written: from the small one, a row of zeros, or chance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.gguf.writer import NewTensor
from slipstream.models.inflate.shapes import NONE, Growth, Ints
from slipstream.models.llama.ggml import calls
from slipstream.models.types import Floats

SILENT: Final = -2
"""Stands in a map for a column that the small matrix lacks and that must be zero, since what it reads is not."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A large matrix in four parts, as rows and columns have a counterpart in the small matrix or not.

    ========================  =================  ==================
    ..                        columns it has     other columns
    rows it has               the small matrix   random, or zeros in the first ``closed`` rows
    other rows                random, or zeros   random
                              with ``below``
    ========================  =================  ==================

    Other columns may be random because their inputs are zero: places added to the stream, heads that read added values,
    added units. Zeros are needed where an output must not be fed: a place added to the stream, the values of an added
    head, one factor of an added unit.
    """

    rows: Ints  # [rows], the small matrix' row, or ``NONE``
    columns: Ints  # [columns], the small matrix' column, or ``NONE``; or ``SILENT``, which counts as one that it has
    closed: int = 0  # so many first rows have zeros beside the small matrix
    below: bool = False  # whether rows that it has not are zero in the columns that it has


def same(count: int, total: int) -> Ints:
    """The map of places that come first: 0 to ``count`` - 1, then ``NONE`` up to ``total`` places."""
    places = np.arange(total)
    return np.where(places < count, places, NONE)


def beside(first: Ints, second: Ints) -> Ints:
    """The map of two runs of places that stand side by side in both models."""
    return np.concatenate([first, np.where(second == NONE, NONE, second + first.max(initial=NONE) + 1)])


def matrix(name: str, growth: Growth, real: bool = True) -> Layout:
    """The layout of one matrix of a layer.

    Args:
        name: Such as ``attn_q``.
        growth: How the small model stands in the large one.
        real: Whether the layer is one of the small model's; an added one has no rows of it.
    """
    small, large = growth.small, growth.large
    width, units = same(small.n_embd, large.n_embd), same(small.n_ff, large.n_ff)
    queries, keys = (_by_head(heads, small.head) for heads in (growth.heads, growth.kv_heads))
    layout = {
        "attn_q": Layout(queries, width),
        "attn_k": Layout(keys, width),
        "attn_v": Layout(keys, width, below=True),
        "attn_output": Layout(width, _hushed(queries, growth), below=True),
        "ffn_gate": Layout(units, width),
        "ffn_up": Layout(units, width, below=True),
        "ffn_down": Layout(width, units, below=True),
    }[name]
    if real:
        return layout
    closed = np.full_like(layout.rows, NONE)
    if name in ("attn_output", "ffn_down"):  # what they read is zero throughout
        return replace(layout, rows=closed, columns=np.full_like(layout.columns, NONE))
    return replace(layout, rows=closed)


def vocabulary(growth: Growth, spare: int, embeds: bool) -> Layout:
    """The layout of the token embedding or the vocabulary matrix.

    Args:
        growth: How the small model stands in the large one.
        spare: The token whose row the added ones copy.
        embeds: Whether its rows go into the stream, whose added places are zero.
    """
    small, large = growth.small, growth.large
    rows = same(small.n_vocab, large.n_vocab)
    width = same(small.n_embd, large.n_embd)
    return Layout(np.where(rows == NONE, spare, rows), width, closed=small.n_vocab if embeds else 0)


def _hushed(queries: Ints, growth: Growth) -> Ints:
    """The map of query heads' outputs: an added head that shares a key head of the small model reads its values."""
    shared = np.repeat(growth.kv_heads != NONE, len(queries) // len(growth.kv_heads))
    hushed: Ints = np.where(shared & (queries == NONE), SILENT, queries)
    return hushed


def _by_head(heads: Ints, size: int) -> Ints:
    """The map of rows that belong to heads."""
    inner = np.arange(size)
    rows: Ints = np.where(heads[:, None] == NONE, NONE, heads[:, None] * size + inner).reshape(-1)
    return rows


_PIECE: Final = 1 << 24  # bytes
_POOL: Final = 1 << 20  # weights
_SPREAD: Final = 0.02  # standard deviation of random weights, as trained ones have

Bytes = NDArray[np.uint8]


def block(kind: gguf.GGMLQuantizationType) -> tuple[int, int]:
    """Weights and bytes of a block."""
    weights, nbytes = gguf.GGML_QUANT_SIZES[kind]
    return int(weights), int(nbytes)


def pack(values: Floats, kind: gguf.GGMLQuantizationType) -> Bytes:
    """Stores rows of whole blocks as llama.cpp's quantizer does: [rows, columns] to [rows, blocks, bytes]."""
    rows, columns = values.shape
    weights, nbytes = block(kind)
    packed = np.empty((rows, columns // weights, nbytes), np.uint8)
    if values.size:
        values = np.ascontiguousarray(values, np.float32)
        calls().quantize_chunk(int(kind), values.ctypes.data, packed.ctypes.data, 0, rows, columns, None)
    return packed


class Filler:
    """Random weights as they are stored: runs of one pool a type, each from another place in it.

    To draw and pack each weight anew would take minutes for a large model. Nothing is gained by it: a pool of a million
    weights is longer than what a file system or a memory looks back on to compress.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._pools: dict[gguf.GGMLQuantizationType, Bytes] = {}

    def blocks(self, count: int, kind: gguf.GGMLQuantizationType) -> Bytes:
        """[count, bytes] of random blocks."""
        nbytes = block(kind)[1]
        if kind not in self._pools:
            drawn = self._random.normal(0, _SPREAD, (1, _POOL)).astype(np.float32)
            self._pools[kind] = pack(drawn, kind)[0]
        pool = self._pools[kind]
        filled = np.empty((count, nbytes), np.uint8)
        done, start = 0, int(self._random.integers(len(pool)))
        while done < count:
            size = min(count - done, len(pool) - start)
            filled[done : done + size] = pool[start : start + size]
            done, start = done + size, 0
        return filled


@dataclass(frozen=True, slots=True)
class LargeTensor(NewTensor):
    """A matrix laid out around a small one; ``values`` gives the small one, float32."""

    layout: Layout  # where its numbers come from
    filler: Filler  # where random ones come from

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Some megabytes at a time.

        Every byte is written, zeros too: the pages of a hole would be one page of zeros in memory, and reading them
        would be measured as if the weights were cached.
        """
        weights, nbytes = block(self.kind)
        rows, columns = self.shape
        count = columns // weights
        filled = (self.layout.columns.reshape(count, weights) != NONE).any(axis=1)
        inside, outside = _runs(filled), _runs(~filled)
        chosen = self.layout.columns[np.repeat(filled, weights)]
        small = self.values()
        step = max(1, _PIECE // (count * nbytes))
        for start in range(0, rows, step):
            sources = self.layout.rows[start : start + step]
            piece = self.filler.blocks(len(sources) * count, self.kind).reshape(len(sources), count, nbytes)
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
    """Rows of the small matrix, its columns at their new places: [rows, blocks, bytes]; each row is packed once."""
    different, which = np.unique(rows, return_inverse=True)
    values = np.zeros((len(different), len(columns)), np.float32)
    if len(different):
        values[:, columns >= 0] = small[different][:, columns[columns >= 0]]
    return pack(values, kind)[which]


def _runs(filled: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Begin and end of every run of True, and how many stand before it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], filled.astype(np.int8), [0]])))
    runs, before = list[tuple[int, int, int]](), 0
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        runs.append((begin, end, before))
        before += end - begin
    return runs
