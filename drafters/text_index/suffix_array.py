"""Sorts the contexts of a text by prefix doubling."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]

DEPTH: Final = 16
"""Tokens of a context that the order looks at; as many as the longest match (REST's longest is 16 too)."""

SEPARATOR: Final = 0xFFFF_FFFF
"""Stands between documents; -1 as a signed number, and behind every token in the order."""


def sorted_contexts(stream: Ids) -> Ids:
    """Sorts the places of a stream by the ``DEPTH`` ids that begin there, of equals the earlier place first.

    The stream runs backwards (see ``text.Text``), so that what begins at a place is the context of the token before
    it, nearest token first. Comparing stops at a separator: the order of a document's places says nothing of its
    neighbours, and leaving a document out leaves the rest in order.

    Prefix doubling (Manber and Myers, 1990) with groups that are done left alone (Larsson and Sadakane, 2007), ended
    at 16 ids. Two or four ids (where they fit 16 bits) make the first 64-bit key, hence three or two more rounds, each
    one argsort of the places not yet told apart: O(n log n), and 70 bytes of memory for each id while it lasts.

    Args:
        stream: [n] ids, the last one a separator, n below 2^32.

    Returns:
        The places that hold a token with a token before it: those from which something can be drafted.
    """
    ids = stream.astype(np.uint32)
    packed = 4 if np.max(ids, where=ids != SEPARATOR, initial=0) < 0xFFFF else 2
    keys = _packed_keys(ids, packed)
    order = np.argsort(keys, kind="stable")
    slots = np.arange(len(ids))
    first, alone = _groups(keys[order], slots)
    del keys
    ranks = np.empty(len(ids), np.uint32)
    ranks[order] = first
    left = _left_in_document(ids)
    depth = packed
    while depth < DEPTH:
        slots = slots[~alone & (left[order[slots]] >= depth)]
        places = order[slots]
        pairs = ranks[places].astype(np.uint64) << np.uint64(32) | ranks[places + depth]
        resorted = np.argsort(pairs, kind="stable")
        places = places[resorted]
        order[slots] = places  # groups keep their slots: their rank is the key's upper half
        first, alone = _groups(pairs[resorted], slots)
        ranks[places] = first
        depth *= 2
    useful = (ids[order] != SEPARATOR) & (ids[order - 1] != SEPARATOR)  # before the first stands the last, a separator
    return np.asarray(order[useful], np.uint32)


def _packed_keys(ids: Ids, packed: int) -> NDArray[np.uint64]:
    """The first ids of every place in one number; behind a separator there are only separators."""
    bits = 64 // packed
    mask = np.uint32((1 << bits) - 1)  # cuts the separator to ones as well
    keys = (ids & mask).astype(np.uint64)
    last = ids
    for ahead in range(1, packed):
        following = np.full_like(ids, SEPARATOR)
        following[:-ahead] = ids[ahead:]
        following[last == SEPARATOR] = SEPARATOR
        keys = keys << np.uint64(bits) | (following & mask)
        last = following
    return keys


def _groups(keys: NDArray[np.uint64], slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per slot of sorted keys: the first slot of its group of equal keys, and whether it is a group of one."""
    begins = np.ones(len(keys) + 1, np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:-1])
    first = np.maximum.accumulate(np.where(begins[:-1], slots, 0))
    return first, begins[:-1] & begins[1:]


def _left_in_document(ids: Ids) -> NDArray[np.uint8]:
    """Per place, the ids before the next separator, at most ``DEPTH``."""
    ends = np.flatnonzero(ids == SEPARATOR)
    next_end = np.repeat(ends, np.diff(ends, prepend=-1))
    return np.asarray(np.minimum(next_end - np.arange(len(ids)), DEPTH), np.uint8)
