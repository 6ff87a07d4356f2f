"""Gumbel noise as a hash of its position: there is no generator state to clone or rewind."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_MASK: Final = (1 << 64) - 1
_WEYL: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # SplitMix64's finalizer (Steele et al., 2014)


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Hashes (seed, position, id) to standard Gumbel noise.

    Args:
        seed: Any integer; only its low 64 bits are used.
        position: Index of the token in the whole conversation.

    Returns:
        Noise [n], the same on every machine up to the last bits of ``log``.
    """
    key = _mix_int(_mix_int(seed & _MASK) + _WEYL * (position + 1))
    whitening = _mix_int(_mix_int(key))  # mixed twice: once would equal the first round of id 1 and cancel it
    bits = _mix(_mix(ids.astype(np.uint64) * np.uint64(_WEYL) + np.uint64(key)) ^ np.uint64(whitening))
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # exact, and never 0 or 1
    return -np.log(-np.log(uniform))


def _mix_int(value: int) -> int:
    value = (value + _WEYL) & _MASK
    for shift, factor in _MIX:
        value = ((value ^ (value >> shift)) * factor) & _MASK
    return value ^ (value >> 31)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes an array in place, as ``_mix_int`` does after its increment."""
    for shift, factor in _MIX:
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> 31
    return bits
