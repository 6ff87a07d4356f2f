"""Where the numbers of a large matrix come from: the small one, a row of zeros, or chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from slipstream.models.inflate.shapes import NONE, Growth, Ints

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

    Attributes:
        rows: [rows], the small matrix' row, or ``NONE``.
        columns: [columns], the small matrix' column, or ``NONE``; or ``SILENT``, which counts as one that it has.
        closed: So many first rows have zeros beside the small matrix.
        below: Whether rows that it has not are zero in the columns that it has.
    """

    rows: Ints
    columns: Ints
    closed: int = 0
    below: bool = False


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
