"""Distributes the layers of a model among several devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def shared_out(sizes: Sequence[int], rooms: Sequence[int], fixed: int) -> tuple[int, ...]:
    """Distributes layers in order, so that the fullest device uses as small a share of its memory as possible.

    Args:
        sizes: Bytes of each layer.
        rooms: Bytes that are free on each device.
        fixed: Bytes that each device needs in addition.

    Returns:
        Number of layers on each device.
    """
    low, high = 0.0, (sum(sizes) + fixed) / max(1, min(rooms)) + 1.0
    best = (len(sizes),) + (0,) * (len(rooms) - 1)
    for _ in range(40):
        middle = (low + high) / 2
        counts = _filled(sizes, rooms, fixed, middle)
        if sum(counts) == len(sizes):
            best, high = counts, middle
        else:
            low = middle
    return best


def _filled(sizes: Sequence[int], rooms: Sequence[int], fixed: int, share: float) -> tuple[int, ...]:
    """Number of layers on each device if each is filled up to ``share`` of its room."""
    counts, at = [], 0
    for room in rooms:
        begin, taken = at, fixed
        while at < len(sizes) and taken + sizes[at] <= share * room:
            taken += sizes[at]
            at += 1
        counts.append(at - begin)
    return tuple(counts)


def in_proportion(count: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Distributes ``count`` layers in given proportions, as llama.cpp does with ``tensor_split``."""
    whole, so_far, ends = sum(shares) or 1.0, 0.0, [0]
    for share in shares:
        so_far += share
        ends.append(round(count * so_far / whole))
    return tuple(end - begin for begin, end in pairwise(ends))
