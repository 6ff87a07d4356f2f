"""How much memory a model may take here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.models.fit_need import Need
from slipstream.models.runtime.devices import Device

MARGIN: Final = 1.05
"""Need is counted so many times over: as far off as it is allowed to be."""
_GPU_KEPT: Final = 512 << 20
"""Bytes that stay free on each GPU: for its driver's work space, and for the screen, which draws on the same memory."""
_KEPT: Final = 1 << 30
_KEPT_SHARE: Final = 0.1
"""Bytes and share of the machine's memory that stay free, whichever is more, for programs that grow and for files that
are read. Where little is free, a quarter of it stays: a small model must run on a small machine too."""
_UNTOLD: Final = 1 << 60
"""Bytes where the system does not tell: a model is not refused for that."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a model may take.

    Attributes:
        gpu: Bytes on all GPUs together; 0 without any.
        memory: Bytes of the machine's memory.
        shared: Whether the GPU's bytes are the machine's, as on Apple silicon.
        gpus: How many GPUs there are; each has a buffer to compute in.
    """

    gpu: int
    memory: int
    shared: bool = False
    gpus: int = 0

    @property
    def total(self) -> int:
        """All that there is."""
        return self.memory if self.shared else self.memory + self.gpu

    def used(self, need: Need) -> float:
        """The share that a model would take, margin included, where it is tightest; above 1 it does not fit."""
        beside = need.total if self.shared else need.total - need.gpu
        shares = ((need.gpu, self.gpu), (beside, self.memory))
        return max(MARGIN * taken / max(1, room) for taken, room in shares)


def room_of(devices: Sequence[Device]) -> Room:
    """Adds up what may be taken; as in llama.cpp, a GPU that shares the machine's memory serves where no other does."""
    gpus = [device for device in devices if device.kind == "gpu"]
    shared = not gpus
    gpus = gpus or [device for device in devices if device.kind == "igpu"][:1]
    processor = next((device for device in devices if device.kind == "cpu"), None)
    memory = 0
    if processor and not processor.total_bytes:
        memory = _UNTOLD
    elif processor:
        kept = min(max(_KEPT, _KEPT_SHARE * processor.total_bytes), processor.free_bytes / 4)
        memory = round(processor.free_bytes - kept)
    gpu = sum(max(0, device.free_bytes - _GPU_KEPT) for device in gpus)
    return Room(gpu, memory, shared and bool(gpus), len(gpus))
