"""What this machine computes with: its processor and GPUs, and how much memory they have left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "igpu", "cpu", "accel"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device that llama.cpp can run on.

    Attributes:
        name: llama.cpp's name of it, such as ``CUDA0`` or ``CPU``.
        kind: "gpu" has memory of its own; "igpu" and "cpu" share the machine's; "accel" helps the processor.
        description: The maker's name of it.
        total_bytes: Memory that it has.
        free_bytes: Memory that is free on it now.
    """

    name: str
    kind: Kind
    description: str
    total_bytes: int
    free_bytes: int


def devices() -> list[Device]:
    """Lists what llama.cpp can run on, the processor last."""
    raise NotImplementedError
