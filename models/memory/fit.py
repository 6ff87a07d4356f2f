"""Decides whether and how a model fits this machine's memory, and describes the result for the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, Literal

from slipstream.models.gguf.reader import Header
from slipstream.models.llama.devices import Device
from slipstream.models.memory.need import ROLLBACK, ContextSize, Need, compute_bytes, need_of, offloaded
from slipstream.models.memory.room import MARGIN, Room, alternative, parts, room_of, spare
from slipstream.models.memory.shape import Shape, rough_shape, shape_of
from slipstream.models.memory.sharing import in_proportion, shared_out
from slipstream.models.types import PACKED, KvType

Verdict = Literal["gpu", "split", "memory", "too big"]
Measure = Callable[[int, "KvType", bool], int | None]
"""Measures llama.cpp's compute buffer in bytes; None if llama.cpp cannot. Takes the context in tokens, the type of the
KV cache, and whether flash attention is off."""

USUAL_CONTEXT: Final = 8192  # largest context by default, in tokens
_COMFORTABLE: Final = 4096
"""If only a context shorter than this fits in a place (GPU, split, memory), a place with a longer one is preferred."""
_SHORTER: Final = (6144, 4096, 2048, 1024, 512)
_DRAFT_LEAVES: Final = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """The best way to open a model on this machine."""

    verdict: Verdict  # "gpu": whole on GPUs; "split": some layers on them; "memory": all on the processor; "too big"
    gpu_layers: int  # number of layers on GPUs, the output counted as one; -1 for all
    n_ctx: int  # context in tokens; for "too big" the one that was tried
    kv_type: KvType  # type of the KV cache
    need: Need
    why: str  # the numbers in a sentence or two, and for "too big" what would fit
    # ``Device.name`` of each GPU that is used, to the number of layers on it, in order
    shares: Mapping[str, int] = field(default_factory=dict)
    cpu_experts: int = 0  # number of first layers whose experts stay in main memory while GPUs are used

    @property
    def machines(self) -> list[str]:
        """The other machines that hold some of its layers."""
        return list(dict.fromkeys(machine for name in self.shares if (machine := name.rpartition("/")[0])))

    @property
    def on_own_gpus(self) -> bool:
        """Whether GPUs of this machine hold some of its layers."""
        return any("/" not in name for name in self.shares)


@dataclass(frozen=True, slots=True)
class _Case:
    """A model with its draft model (on the GPU of index ``draft_on``), the bytes of its heads, and its options."""

    shape: Shape
    draft: Shape | None = None
    measure: Measure | None = None
    heads: int = 0
    scores: bool = False
    draft_on: int | None = 0
    drafts: bool = True
    cpu_experts: int = 0
    borrows: bool = True

    @property
    def layers(self) -> int:
        """Number of layers that can be on GPUs, the output counted as one."""
        return len(self.shape.layers) + 1

    def need(self, n_ctx: int, kv: KvType, shares: Sequence[int], rows: int = 64, leaves: int = 16) -> Need:
        context, measured = self._context(n_ctx, kv, any(shares), rows, leaves)
        own = need_of(self.shape, context, shares, measured, self.cpu_experts, self.borrows)
        return own + self._drafter(n_ctx, any(shares), rows)

    def spread(self, n_ctx: int, kv: KvType, count: int, room: Room, split: Sequence[float]) -> tuple[int, ...]:
        """Distributes ``count`` layers among the GPUs: in the proportions of ``split``, or by their free memory."""
        if split:
            return in_proportion(count, split[: len(room.gpus)])
        if len(room.gpus) == 1:
            return (count,)
        context, measured = self._context(n_ctx, kv, True)
        graph = compute_bytes(self.shape, context, self.cpu_experts) if measured is None else measured
        beside = self._drafter(n_ctx, True).on
        pairs = zip_longest(room.gpus, beside[: len(room.gpus)], fillvalue=0)
        rooms = [round(free / MARGIN) - taken for free, taken in pairs]
        return shared_out(offloaded(self.shape, context, self.cpu_experts)[self.layers - count :], rooms, graph)

    def _context(
        self, n_ctx: int, kv: KvType, on_gpu: bool, rows: int = 64, leaves: int = 16
    ) -> tuple[ContextSize, int | None]:
        scores = self.scores and not on_gpu
        measured = self.measure(n_ctx, kv, scores) if self.measure and not self.cpu_experts else None
        rollback = ROLLBACK if self.drafts else 0
        return ContextSize(n_ctx, kv, rows, leaves, rollback, flash=not scores or kv in PACKED), measured

    def _drafter(self, n_ctx: int, on_gpu: bool, rows: int = 64) -> Need:
        """The need of the draft model and the heads, on their GPU if the model uses GPUs."""
        place = self.draft_on if on_gpu else None
        before = (0,) * (place or 0)
        own = Need(self.heads, 0, 0, () if place is None else (*before, self.heads))
        if self.draft is None:
            return own
        flash = not (self.scores and not on_gpu)
        least = min(n_ctx, self.draft.longest or n_ctx)
        context = ContextSize(least, rows=rows, leaves=_DRAFT_LEAVES, rollback=0, flash=flash)
        whole = len(self.draft.layers) + 1
        return own + need_of(self.draft, context, () if place is None else (*before, whole))


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
        n_gpu_layers: Number of layers on one GPU, the output counted as one; -1 for all.
        rows: Maximum rows of one evaluation.
        leaves: Maximum leaves of a tree.
        flash: Whether flash attention is on; on GPUs it always is.
    """
    case = _Case(shape_of(header), shape_of(draft) if draft else None, scores=not flash)
    count = case.layers if n_gpu_layers < 0 else min(n_gpu_layers, case.layers)
    return case.need(n_ctx, kv_type, (count,) if count else (), rows, leaves)


def fit(
    header: Header,
    devices: Sequence[Device],
    want_ctx: int | None = None,
    draft: Header | None = None,
    kv_type: KvType | None = None,
    measure: Measure | None = None,
    heads: int = 0,
    scores: bool = False,
    gpu_layers: int = -1,
    split: Sequence[float] = (),
    draft_device: str = "",
    longest: Sequence[int] = (),
    drafts: bool = True,
    cpu_experts: int = -1,
) -> Fit:
    """Chooses context, KV type and GPU layers, or finds that the model is too big.

    Tries places in this order: all layers on this machine's GPUs; all on these and on other machines' GPUs; the same,
    but the experts of as few layers as possible in main memory; some layers on GPUs; all in main memory. In each place
    it tries contexts from long to short, at most 8,192 tokens unless ``want_ctx`` is given, each with an F16 KV cache
    before Q8_0. A place that fits fewer than 4,096 tokens is used only if no place fits 4,096.

    Args:
        devices: The machine's devices, as ``slipstream.models.llama.devices.devices`` lists them.
        want_ctx: The requested context; None to choose one.
        kv_type: The required type of KV cache; None to choose.
        measure: Measures the compute buffer with llama.cpp; None to estimate it.
        scores: Whether attention on the processor runs without flash attention.
        gpu_layers: Number of layers on GPUs that the user set, even if they do not fit; -1 for as many as fit.
        split: Proportions in which all GPUs share the model; empty to fill them evenly.
        draft_device: ``Device.name`` of the draft model's device; empty for this machine's first GPU, if it has one.
        longest: Longest contexts of the model and of the draft model; empty to take them from the files.
        drafts: Whether a drafter is used; a recurrent model then keeps copies of its state.
        cpu_experts: Number of first layers whose experts stay in main memory, as the user set it; -1 for as few as
            possible.
    """
    room = room_of([device for device in devices if gpu_layers or device.kind == "cpu"])
    place = room.names.index(draft_device) if draft_device in room.names else 0 if room.own else None
    place = None if draft_device == "CPU" else place
    shapes = [shape_of(each) for each in (header, draft) if each]
    for at, tokens in enumerate(longest[: len(shapes)]):
        shapes[at] = replace(shapes[at], longest=tokens)
    case = _Case(shapes[0], shapes[1] if draft else None, measure, heads, scores, place, drafts)
    case = replace(case, cpu_experts=min(max(0, cpu_experts), len(case.shape.layers)), borrows=room.own > 0)
    chosen = _fit(case, room, want_ctx, kv_type, split, chooses=cpu_experts < 0 and gpu_layers < 0)
    if gpu_layers < 0 or chosen.verdict == "too big":
        return chosen
    count = min(gpu_layers, case.layers)
    shares = case.spread(chosen.n_ctx, chosen.kv_type, count, room, split) if count and room.gpus else ()
    return replace(
        chosen,
        gpu_layers=gpu_layers,
        need=case.need(chosen.n_ctx, chosen.kv_type, shares),
        shares=_named(room, shares),
        cpu_experts=case.cpu_experts if any(shares) else 0,
    )


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
    return _fit(_Case(shape, draft, draft_on=0 if room.own else None), room, want_ctx, None)


def _fit(
    case: _Case,
    room: Room,
    want_ctx: int | None,
    kv_type: KvType | None,
    split: Sequence[float] = (),
    chooses: bool = False,
) -> Fit:
    """See ``fit``; ``chooses``: whether experts may stay in memory if necessary."""
    top = want_ctx or min(case.shape.n_ctx_train or USUAL_CONTEXT, USUAL_CONTEXT)
    contexts = [top] if want_ctx else [top, *(n for n in _SHORTER if n < top)]
    floor = min(_COMFORTABLE, top)
    for group in ([n for n in contexts if n >= floor], [n for n in contexts if n < floor]):
        for place in _places(room, split, chooses and any(layer.experts for layer in case.shape.layers)):
            for n_ctx in group:
                for kv in _kv_types(case.shape, kv_type):
                    found = _placed(case, place, n_ctx, kv)
                    if found:
                        return found
    tried = top if want_ctx else floor
    kv = _kv_types(case.shape, kv_type)[0]
    least = case.need(tried, _kv_types(case.shape, kv_type)[-1], ())
    shorter = _longest(case, room, kv_type, tried, split) if want_ctx else None
    instead = alternative(case.shape, least, room, shorter)
    need = case.need(tried, kv, ())
    return Fit("too big", 0, tried, kv, need, f"{parts(need)}, but {spare(room)}. {instead}")


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a model: ``whole`` is all usable memory, ``room`` the part of it that the model may use."""

    verdict: Verdict
    whole: Room
    room: Room
    split: Sequence[float] = ()
    experts: bool = False  # whether the experts of some layers stay in memory


def _places(room: Room, split: Sequence[float], experts: bool = False) -> Iterator[_Place]:
    if sum(room.gpus):
        whole = [_Place("gpu", room, room, split)]
        if 0 < room.own < len(room.gpus) and not split:
            own = slice(0, room.own)
            used = replace(room, gpus=room.gpus[own], names=room.names[own], machines=room.machines[own])
            whole.insert(0, _Place("gpu", room, used))
        yield from whole
        if experts:
            yield from (replace(place, verdict="split", experts=True) for place in whole)
        yield _Place("split", room, room, split)
    yield _Place("memory", room, room)


def _kv_types(shape: Shape, kv_type: KvType | None) -> list[KvType]:
    if kv_type:
        return [kv_type]
    return ["f16", "q8_0"] if shape.packable and any(layer.keys for layer in shape.layers) else ["f16"]


def _placed(case: _Case, place: _Place, n_ctx: int, kv: KvType) -> Fit | None:
    """The fit of a model in one place; None if it does not fit there."""
    count = case.layers if place.verdict == "gpu" or place.experts else 0
    if place.experts:
        case = _fewest_experts(case, place, n_ctx, kv)
    elif place.verdict == "split":
        low, high = 1, case.layers - 1  # 1 would be the output alone, which is no faster
        while low < high:
            middle = (low + high + 1) // 2
            on = case.need(n_ctx, kv, case.spread(n_ctx, kv, middle, place.room, place.split)).on
            fits = all(MARGIN * taken <= free for taken, free in zip(on, place.room.gpus, strict=False))
            low, high = (middle, high) if fits else (low, middle - 1)
        count = low
        if count < 2:
            return None
    shares = case.spread(n_ctx, kv, count, place.room, place.split) if count else ()
    need = case.need(n_ctx, kv, shares)
    if place.room.used(need) > 1:
        return None
    layers = -1 if count == case.layers else count
    where = _where(place, shares, case.layers)
    kept = case.cpu_experts if count else 0
    where += f", but the experts of {kept} layers in memory" if kept else ""
    why = f"{parts(need)}{', ' if where else ''}{where}; {spare(place.whole)}."
    verdict = "split" if kept else place.verdict
    return Fit(verdict, layers, n_ctx, kv, need, why, _named(place.room, shares), kept)


def _fewest_experts(case: _Case, place: _Place, n_ctx: int, kv: KvType) -> _Case:
    """Moves the experts of as few layers to main memory as the GPUs allow; of all layers, if that is not enough."""
    low, high = 1, len(case.shape.layers)
    while low < high:
        middle = (low + high) // 2
        tried = replace(case, cpu_experts=middle)
        on = tried.need(n_ctx, kv, tried.spread(n_ctx, kv, case.layers, place.room, place.split)).on
        fits = all(MARGIN * taken <= free for taken, free in zip(on, place.room.gpus, strict=False))
        low, high = (low, middle) if fits else (middle + 1, high)
    return replace(case, cpu_experts=low)


def _named(room: Room, shares: Sequence[int]) -> Mapping[str, int]:
    """Name of each GPU to its number of layers."""
    return {name: count for name, count in zip(room.names, shares, strict=False) if count}


def _where(place: _Place, shares: Sequence[int], layers: int) -> str:
    """Describes how many layers each GPU holds."""
    room = place.room
    if not any(shares):
        return "none of it on a GPU" if room.gpus else ""
    on: dict[str, int] = {}
    for machine, count in zip(room.machines, shares, strict=True):
        name = machine or ("the GPU" if room.own == 1 else f"the {room.own} GPUs")
        on[name] = on.get(name, 0) + count
    held = [(name, count) for name, count in on.items() if count]
    if sum(shares) == layers and len(held) == 1:
        return f"all on {held[0][0]}"
    return f"{' and '.join(f'{count} of {layers} layers on {name}' for name, count in held)}"


def _longest(case: _Case, room: Room, kv_type: KvType | None, below: int, split: Sequence[float]) -> int | None:
    """The longest context that fits and that the model supports, in steps of 256 tokens; None below 512."""
    low, high = 1, min(below, case.shape.longest or below) // 256
    while low < high:
        middle = (low + high + 1) // 2
        kv = _kv_types(case.shape, kv_type)[-1]
        fits = any(_placed(case, place, 256 * middle, kv) for place in _places(room, split))
        low, high = (middle, high) if fits else (low, middle - 1)
    return 256 * low if low > 1 else None
