"""What a person is told about a model's fit."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from slipstream.models.fit_need import Need
from slipstream.models.fit_room import MARGIN, Room
from slipstream.models.fit_shape import Shape

_BITS: Final = MappingProxyType(
    {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "IQ4_XS": 4.4, "Q3_K_M": 4.0, "Q2_K": 3.2}
)
"""Bits that a weight takes in the usual quantizations, embeddings included, about."""
_USUAL: Final = "Q4_K_M"


def gigabytes(count: float) -> str:
    """Bytes in the decimal units of model pages, such as "4.9 GB"."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def parts(need: Need) -> str:
    """What a model takes, and for what."""
    shares = f"weights {gigabytes(need.weights)}, KV cache {gigabytes(need.kv)}, buffers {gigabytes(need.compute)}"
    return f"It takes {gigabytes(need.total)} ({shares})"


def spare(room: Room) -> str:
    """What may be taken, the margin left out."""
    memory, gpu = (gigabytes(count / MARGIN) for count in (room.memory, room.gpu))
    if not room.gpus:
        return f"{memory} of memory can be used"
    on = "the GPU" if room.gpus == 1 else f"the {room.gpus} GPUs"
    if room.shared:
        return f"{memory} of memory can be used, {gpu} of it by the GPU"
    return f"{gpu} on {on} and {memory} of memory can be used"


def in_its_place(shape: Shape, need: Need, room: Room, n_ctx: int | None, same_size: bool = True) -> str:
    """Says what would fit in place of a model that does not.

    Args:
        shape: The model.
        need: What it takes with a context that people can work with.
        room: What may be taken.
        n_ctx: A shorter context with which it would fit, or None.
        same_size: Whether the model's number of parameters is known.
    """
    if n_ctx:
        return f"A context of {n_ctx:,} tokens would fit."
    left = room.total / MARGIN - need.kv - need.compute
    bits = 8 * shape.weights / max(1, shape.params)
    if same_size:
        for name, size in _BITS.items():
            if size < 0.95 * bits and size / 8 * shape.params <= left:
                return f"It would fit as {name} (about {gigabytes(size / 8 * shape.params)})."
    largest = 8 * left / _BITS[_USUAL] / 1e9
    if largest < 0.1:
        return "Close other programs; hardly any model fits in what is free."
    rounded = f"{largest:.0f}" if largest >= 3 else f"{largest:.1f}"
    return f"A model of up to about {rounded} billion parameters would fit as {_USUAL}."
