"""Decides whether and how a model fits this machine's memory, and describes the result for the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from slipstream.models.gguf.reader import Header
from slipstream.models.llama.devices import Device
from slipstream.models.memory.need import ContextSize, Need, need_of
from slipstream.models.memory.shape import Shape, rough_shape, shape_of
from slipstream.models.types import PACKED, KvType

MARGIN: Final = 1.05  # factor on every estimate: the largest error that estimates may have
_GPU_KEPT: Final = 512 << 20
"""Bytes that stay free on each GPU: for its driver's work space, and for the screen, which draws on the same memory."""
_KEPT: Final = 1 << 30
_KEPT_SHARE: Final = 0.1
"""Bytes and share of the machine's memory that stay free, whichever is more, for other programs and the file cache. If
little memory is free, a quarter of it stays free, so that a small model runs on a small machine too."""
_UNKNOWN: Final = 1 << 60  # bytes assumed if the system does not report its memory, so that no model is refused


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a model may take."""

    gpu: int  # bytes on all GPUs together; 0 without any
    memory: int  # bytes of the machine's memory
    shared: bool = False  # whether the GPU uses the machine's memory, as on Apple silicon
    gpus: int = 0  # number of GPUs; each has a compute buffer

    @property
    def total(self) -> int:
        return self.memory if self.shared else self.memory + self.gpu

    def used(self, need: Need) -> float:
        """The larger share that a model takes of the GPUs or the memory, with margin; above 1 it does not fit."""
        in_memory = need.total if self.shared else need.total - need.gpu
        shares = ((need.gpu, self.gpu), (in_memory, self.memory))
        return max(MARGIN * taken / max(1, room) for taken, room in shares)


def room_of(devices: Sequence[Device]) -> Room:
    """Adds up the usable memory; like llama.cpp, it uses an integrated GPU only if there is no other."""
    gpus = [device for device in devices if device.kind == "gpu"]
    shared = not gpus
    gpus = gpus or [device for device in devices if device.kind == "igpu"][:1]
    processor = next((device for device in devices if device.kind == "cpu"), None)
    memory = 0
    if processor and not processor.total_bytes:
        memory = _UNKNOWN
    elif processor:
        kept = min(max(_KEPT, _KEPT_SHARE * processor.total_bytes), processor.free_bytes / 4)
        memory = round(processor.free_bytes - kept)
    gpu = sum(max(0, device.free_bytes - _GPU_KEPT) for device in gpus)
    return Room(gpu, memory, shared and bool(gpus), len(gpus))


# bits that a weight takes in the usual quantizations, embeddings included, about
_BITS: Final = MappingProxyType(
    {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "IQ4_XS": 4.4, "Q3_K_M": 4.0, "Q2_K": 3.2}
)
_USUAL: Final = "Q4_K_M"


def gigabytes(count: float) -> str:
    """Bytes in the decimal units of model pages, such as "4.9 GB"."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def parts(need: Need) -> str:
    """A model's need in words."""
    shares = f"weights {gigabytes(need.weights)}, KV cache {gigabytes(need.kv)}, buffers {gigabytes(need.compute)}"
    return f"Needs {gigabytes(need.total)} ({shares})"


def spare(room: Room) -> str:
    """The usable memory in words, without the margin."""
    memory, gpu = (gigabytes(count / MARGIN) for count in (room.memory, room.gpu))
    if not room.gpus:
        return f"{memory} of memory available"
    on = "the GPU" if room.gpus == 1 else f"the {room.gpus} GPUs"
    if room.shared:
        return f"{memory} of memory available, {gpu} of it by the GPU"
    return f"{gpu} on {on} and {memory} of memory available"


def alternative(shape: Shape, need: Need, room: Room, n_ctx: int | None) -> str:
    """Describes what would fit instead of a model that does not; ``n_ctx`` is a shorter context with which it would."""
    if n_ctx:
        return f"A context of {n_ctx:,} tokens would fit."
    left = room.total / MARGIN - need.kv - need.compute
    bits = 8 * shape.weights / max(1, shape.params)
    for name, size in _BITS.items():
        if size < 0.95 * bits and size / 8 * shape.params <= left:
            return f"It would fit as {name} (about {gigabytes(size / 8 * shape.params)})."
    largest = 8 * left / _BITS[_USUAL] / 1e9
    if largest < 0.1:
        return "Close other programs; hardly any model fits in what is free."
    rounded = f"{largest:.0f}" if largest >= 3 else f"{largest:.1f}"
    return f"A model of up to about {rounded} billion parameters would fit as {_USUAL}."


Verdict = Literal["gpu", "split", "memory", "too big"]
Measure = Callable[[int, "KvType", bool], int | None]
"""Measures the bytes of llama.cpp's compute buffer, given a context, a type of KV cache, and whether flash attention is
off; None if llama.cpp cannot measure it."""

USUAL_CONTEXT: Final = 8192  # largest context by default, in tokens
_COMFORTABLE: Final = 4096
"""Context in tokens below which another place (GPU, split, memory) with a longer one is preferred."""
_SHORTER: Final = (6144, 4096, 2048, 1024, 512)
_DRAFT_LEAVES: Final = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """The best way to open a model on this machine."""

    verdict: Verdict  # "gpu": whole on the GPU; "split": some layers on it; "memory": all on the processor; "too big"
    gpu_layers: int  # layers on the GPU, the output counted as one; -1 for all
    n_ctx: int  # context in tokens; for "too big" the one that was tried
    kv_type: KvType  # type of the KV cache
    need: Need
    why: str  # the numbers in a sentence or two, and for "too big" what would fit


@dataclass(frozen=True, slots=True)
class _Case:
    """A model with its drafter (a draft model, bytes of heads), the number of GPUs, and its kind of attention."""

    shape: Shape
    draft: Shape | None = None
    measure: Measure | None = None
    gpus: int = 1
    heads: int = 0
    scores: bool = False  # whether the processor runs without flash attention, which stores the scores

    def need(self, n_ctx: int, kv: KvType, gpu_layers: int, rows: int = 64, leaves: int = 16) -> Need:
        scores = self.scores and not gpu_layers
        flash = not scores or kv in PACKED
        measured = self.measure(n_ctx, kv, scores) if self.measure else None
        own = need_of(self.shape, ContextSize(n_ctx, kv, rows, leaves, flash=flash), gpu_layers, self.gpus, measured)
        own += Need(self.heads, 0, 0, self.heads if gpu_layers else 0)
        if self.draft is None:
            return own
        context = ContextSize(
            min(n_ctx, self.draft.n_ctx_train or n_ctx), rows=rows, leaves=_DRAFT_LEAVES, flash=not scores
        )
        return own + need_of(self.draft, context, -1 if gpu_layers else 0, self.gpus)


def need(
    header: Header,
    n_ctx: int,
    kv_type: KvType = "f16",
    n_gpu_layers: int = 0,
    rows: int = 64,
    leaves: int = 16,
    draft: Header | None = None,
    flash: bool = True,
) -> Need:
    """Estimates the memory of a model that is opened with ``ContextOptions``.

    Args:
        n_gpu_layers: Layers on the GPU, the output counted as one; -1 for all.
        rows: Most rows of one evaluation.
        leaves: Most leaves of a tree.
        flash: Whether flash attention is on; on GPUs it always is.
    """
    case = _Case(shape_of(header), shape_of(draft) if draft else None, scores=not flash)
    return case.need(n_ctx, kv_type, n_gpu_layers, rows, leaves)


def fit(
    header: Header,
    devices: Sequence[Device],
    want_ctx: int | None = None,
    draft: Header | None = None,
    kv_type: KvType | None = None,
    measure: Measure | None = None,
    heads: int = 0,
    scores: bool = False,
) -> Fit:
    """Chooses context, KV type and GPU layers, or finds that the model is too big.

    The order: whole on the GPU, split, in memory. Each place gets the longest context that fits, at most 8,192 tokens
    unless ``want_ctx`` is given, with a KV cache of F16 before one of Q8_0. A place with room for fewer than 4,096
    tokens is skipped if another one has more.

    Args:
        devices: The machine's devices, as ``slipstream.models.llama.devices.devices`` lists it.
        want_ctx: The requested context; None for the longest sensible one.
        kv_type: The required type of KV cache; None to choose.
        measure: Measures the compute buffer with llama.cpp; None to estimate it.
        scores: Whether attention on the processor runs without flash attention.
    """
    room = room_of(devices)
    case = _Case(shape_of(header), shape_of(draft) if draft else None, measure, max(1, room.gpus), heads, scores)
    return _fit(case, room, want_ctx, kv_type)


def estimate(
    size: int,
    params: int,
    devices: Sequence[Device],
    context: int | None = None,
    want_ctx: int | None = None,
    draft_size: int = 0,
) -> Fit:
    """Estimates the fit of a model without its header, from typical shapes of models of its size.

    Args:
        size: Bytes of its file.
        params: Number of its parameters; 0 if unknown.
        context: Context that it was trained with, if known.
        draft_size: Bytes of its draft model's file; 0 for none.
    """
    room = room_of(devices)
    shape, draft = rough_shape(size, params, context or 0), rough_shape(draft_size) if draft_size else None
    return _fit(_Case(shape, draft, gpus=max(1, room.gpus)), room, want_ctx, None)


def _fit(case: _Case, room: Room, want_ctx: int | None, kv_type: KvType | None) -> Fit:
    top = want_ctx or min(case.shape.n_ctx_train or USUAL_CONTEXT, USUAL_CONTEXT)
    contexts = [top] if want_ctx else [top, *(n for n in _SHORTER if n < top)]
    floor = min(_COMFORTABLE, top)
    for group in ([n for n in contexts if n >= floor], [n for n in contexts if n < floor]):
        for verdict in _places(room):
            for n_ctx in group:
                for kv in _kv_types(case.shape, kv_type):
                    found = _placed(case, room, verdict, n_ctx, kv)
                    if found:
                        return found
    tried = top if want_ctx else floor
    kv = _kv_types(case.shape, kv_type)[0]
    least = case.need(tried, _kv_types(case.shape, kv_type)[-1], 0)
    shorter = _longest(case, room, kv_type, tried) if want_ctx else None
    instead = alternative(case.shape, least, room, shorter)
    need = case.need(tried, kv, 0)
    return Fit("too big", 0, tried, kv, need, f"{parts(need)}, but {spare(room)}. {instead}")


def _places(room: Room) -> Iterator[Verdict]:
    if room.gpu:
        yield from ("gpu", "split")
    yield "memory"


def _kv_types(shape: Shape, kv_type: KvType | None) -> list[KvType]:
    if kv_type:
        return [kv_type]
    return ["f16", "q8_0"] if shape.packable and any(layer.keys for layer in shape.layers) else ["f16"]


def _placed(case: _Case, room: Room, verdict: Verdict, n_ctx: int, kv: KvType) -> Fit | None:
    """The fit of a model in one place (``Verdict``); None if it does not fit there."""
    layers = {"gpu": -1, "memory": 0}.get(verdict, 0)
    if verdict == "split":
        low, high = 1, len(case.shape.layers)  # 1 is the output alone, which is no faster
        while low < high:
            middle = (low + high + 1) // 2
            fits = MARGIN * case.need(n_ctx, kv, middle).gpu <= room.gpu
            low, high = (middle, high) if fits else (low, middle - 1)
        layers = low
        if layers < 2:
            return None
    need = case.need(n_ctx, kv, layers)
    if room.used(need) > 1:
        return None
    where = {
        "gpu": "all on the GPU",
        "split": f"{layers} of {len(case.shape.layers) + 1} layers on the GPU",
        "memory": "none of it on a GPU" if room.gpus else "",
    }[verdict]
    return Fit(verdict, layers, n_ctx, kv, need, f"{parts(need)}{', ' if where else ''}{where}; {spare(room)}.")


def _longest(case: _Case, room: Room, kv_type: KvType | None, below: int) -> int | None:
    """The longest context that fits, up to the one it was trained with, in steps of 256 tokens; None below 512."""
    low, high = 1, min(below, case.shape.n_ctx_train or below) // 256
    while low < high:
        middle = (low + high + 1) // 2
        kv = _kv_types(case.shape, kv_type)[-1]
        fits = any(_placed(case, room, verdict, 256 * middle, kv) for verdict in _places(room))
        low, high = (middle, high) if fits else (low, middle - 1)
    return 256 * low if low > 1 else None
