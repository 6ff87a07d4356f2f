"""The memory that a model may take on this machine and on others, in bytes and in words; shares of several devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from slipstream.models.llama.devices import Device
from slipstream.models.memory.need import ModelSize, Need

MARGIN: Final = 1.05  # factor on every estimate: the largest error that estimates may have
_GPU_KEPT: Final = 512 << 20  # bytes that stay free on each GPU for its driver and for the display
_METAL_KEPT: Final = 2 << 30  # the same of Metal's working set: where it overflows, Metal ends the process
_KEPT: Final = 1 << 30
_KEPT_SHARE: Final = 0.1
"""Main memory that stays free for other programs and the file cache: the larger of these bytes and this share of all
memory, but at most a quarter of the free memory, so that a small model runs on a small machine."""
_UNKNOWN: Final = 1 << 60  # bytes assumed if the system does not report its memory, so that no model is refused
# approximate bits per weight of usual quantizations, embeddings included
_BITS: Final = MappingProxyType(
    {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "IQ4_XS": 4.4, "Q3_K_M": 4.0, "Q2_K": 3.2}
)
_USUAL: Final = "Q4_K_M"


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a model may take."""

    gpus: tuple[int, ...]  # bytes on each GPU; GPUs of other machines come last
    memory: int  # bytes of main memory
    shared: bool = False  # whether the first GPU uses the machine's memory, as on Apple silicon
    names: tuple[str, ...] = ()  # ``Device.name`` of each GPU
    machines: tuple[str, ...] = ()  # the machine that lends each GPU; empty for this machine's

    @property
    def own(self) -> int:
        """Number of this machine's GPUs."""
        return self.machines.count("")

    @property
    def total(self) -> int:
        return self.memory + sum(self.gpus[self.shared :])

    def used(self, need: Need) -> float:
        """The largest share of a device's memory that a model takes, with margin; above 1, it does not fit."""
        beside = need.total - sum(need.on[self.shared :])
        shares = [*zip(need.on, self.gpus, strict=False), (beside, self.memory)]
        return max(MARGIN * taken / max(1, room) for taken, room in shares)


def room_of(devices: Sequence[Device]) -> Room:
    """The usable memory; like llama.cpp, it counts an integrated GPU only if this machine has no discrete one."""
    own = [device for device in devices if device.kind == "gpu" and not device.machine]
    integrated = [device for device in devices if device.kind == "igpu"][:1]
    gpus = [*(own or integrated), *(device for device in devices if device.machine)]
    processor = next((device for device in devices if device.kind == "cpu"), None)
    memory = 0
    if processor and not processor.total_bytes:
        memory = _UNKNOWN
    elif processor:
        kept = min(max(_KEPT, _KEPT_SHARE * processor.total_bytes), processor.free_bytes / 4)
        memory = round(processor.free_bytes - kept)
    return Room(
        tuple(max(0, each.free_bytes - (_METAL_KEPT if each.name.startswith("MTL") else _GPU_KEPT)) for each in gpus),
        memory,
        shared=bool(integrated and not own),
        names=tuple(device.name for device in gpus),
        machines=tuple(device.machine for device in gpus),
    )


def gigabytes(count: float) -> str:
    """Bytes in the decimal units of model pages, such as "4.9 GB"."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def parts(need: Need) -> str:
    shares = f"weights {gigabytes(need.weights)}, KV cache {gigabytes(need.kv)}, buffers {gigabytes(need.compute)}"
    return f"Needs {gigabytes(need.total)} ({shares}{f', extras {gigabytes(need.extras)}' if need.extras else ''})"


def spare(room: Room) -> str:
    """What a model may take, with the margin taken off: less than what is free, see ``room_of``."""
    memory = f"{gigabytes(room.memory / MARGIN)} of memory"
    parts = []
    if room.own:
        on = "the GPU" if room.own == 1 else f"the {room.own} GPUs"
        parts.append(f"{gigabytes(sum(room.gpus[: room.own]) / MARGIN)} {'of it by' if room.shared else 'on'} {on}")
    for machine in dict.fromkeys(room.machines[room.own :]):
        lent = sum(free for free, of in zip(room.gpus, room.machines, strict=True) if of == machine)
        parts.append(f"{gigabytes(lent / MARGIN)} on {machine}")
    if not parts:
        return f"a model may take {memory}"
    if room.shared:
        return f"a model may take {memory}, {' and '.join(parts)}"
    return f"a model may take {', '.join(parts)} and {memory}"


def alternative(model: ModelSize, need: Need, room: Room, n_ctx: int | None) -> str:
    """Describes what would fit instead of the model; ``n_ctx`` is a shorter context that would fit, if there is one."""
    if n_ctx:
        return f"A context of {n_ctx:,} tokens would fit."
    left = room.total / MARGIN - need.kv - need.compute
    bits = 8 * model.weights / max(1, model.params)
    for name, size in _BITS.items():
        if size < 0.95 * bits and size / 8 * model.params <= left:
            return f"It would fit as {name} (about {gigabytes(size / 8 * model.params)})."
    largest = 8 * left / _BITS[_USUAL] / 1e9
    if largest < 0.1:
        return "Close other programs; hardly any model fits in what is free."
    rounded = f"{largest:.0f}" if largest >= 3 else f"{largest:.1f}"
    return f"A model of up to about {rounded} billion parameters would fit as {_USUAL}."


def shared_out(sizes: Sequence[int], rooms: Sequence[int], fixed: int) -> tuple[int, ...]:
    """Distributes layers in order, so that the fullest device uses as small a share of its memory as possible.

    Each device needs ``fixed`` bytes in addition.
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
