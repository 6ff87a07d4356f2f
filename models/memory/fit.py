"""Decides whether and how a model fits this machine's memory, and describes the result for the screen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final, Literal

from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.gguf.reader import Header
from slipstream.models.llama.devices import Device
from slipstream.models.memory.need import (
    ROLLBACK,
    ContextSize,
    ModelSize,
    Need,
    compute_bytes,
    need_of,
    offloaded,
    rough_size,
    size_of,
)
from slipstream.models.memory.room import MARGIN, Room, alternative, in_proportion, parts, room_of, shared_out, spare
from slipstream.models.types import PACKED, KvType

Verdict = Literal["gpu", "split", "memory", "too big"]
Measure = Callable[[int, "KvType", bool], int | None]
"""Measures llama.cpp's compute buffer in bytes; None if llama.cpp cannot. Takes the context in tokens, the type of the
KV cache, and whether flash attention is off."""
_COMFORTABLE: Final = 4096
"""If only a context shorter than this fits in a place (GPU, split, memory), a place with a longer one is preferred."""
_SHORTER: Final = tuple(DEFAULT_CONTEXT * share // 16 for share in (12, 8, 4, 2, 1))
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
    room: int = 0  # bytes that a model may take in this place, the margin taken off

    @property
    def taken(self) -> int:
        """Bytes of ``room`` that it takes; a model on GPUs keeps some in main memory, where there is enough."""
        return self.need.gpu if self.verdict == "gpu" else self.need.total

    @property
    def machines(self) -> list[str]:
        """The other machines that hold some of its layers."""
        return list(dict.fromkeys(machine for name in self.shares if (machine := name.rpartition("/")[0])))

    @property
    def on_own_gpus(self) -> bool:
        """Whether GPUs of this machine hold some of its layers."""
        return any("/" not in name for name in self.shares)


@dataclass(frozen=True, slots=True)
class FitOptions:
    """What is set for a model that is to be fitted; the rest is chosen."""

    n_ctx: int | None = None  # the requested context; None to choose one
    draft: Header | None = None  # the draft model
    kv_type: KvType | None = None  # the required type of KV cache; None to choose
    measure: Measure | None = None  # measures the compute buffer with llama.cpp; None to estimate it
    heads: int = 0  # bytes of what is loaded beside it: heads, adapters, an image encoder
    scores: bool = False  # whether attention on the processor runs without flash attention
    gpu_layers: int = -1  # layers on GPUs that the user set, even if they do not fit; -1 for as many as fit
    split: Sequence[float] = ()  # proportions in which all GPUs share the model; empty to fill them evenly
    draft_device: str = ""  # ``Device.name`` of the draft model's device; empty for this machine's first GPU
    longest: Sequence[int] = ()  # longest contexts of the model and of the draft model; empty to take the files'
    drafts: bool = True  # whether a drafter is used; a recurrent model then keeps copies of its state
    # number of first layers whose experts stay in main memory, as the user set it; -1 for as few as possible
    cpu_experts: int = -1


@dataclass(frozen=True, slots=True)
class _Case:
    """A model with its draft model (on the GPU of index ``draft_on``) and its options."""

    model: ModelSize
    options: FitOptions
    draft: ModelSize | None = None
    draft_on: int | None = 0
    cpu_experts: int = 0
    borrows: bool = True  # whether the first GPU is this machine's

    @property
    def layers(self) -> int:
        """Number of layers that can be on GPUs, the output counted as one."""
        return len(self.model.layers) + 1

    @property
    def kv_types(self) -> list[KvType]:
        if self.options.kv_type:
            return [self.options.kv_type]
        packs = self.model.packable and any(layer.keys for layer in self.model.layers)
        return ["f16", "q8_0"] if packs else ["f16"]

    def need(self, n_ctx: int, kv: KvType, shares: Sequence[int]) -> Need:
        context, measured = self._context(n_ctx, kv, any(shares))
        own = need_of(
            self.model, context, shares, measured=measured, cpu_experts=self.cpu_experts, borrows=self.borrows
        )
        return own.beside(*self._extras(n_ctx, any(shares)))

    def spread(self, n_ctx: int, kv: KvType, count: int, room: Room) -> tuple[int, ...]:
        """Distributes ``count`` layers among the GPUs: in the proportions of ``split``, or by their free memory."""
        if self.options.split:
            return in_proportion(count, self.options.split[: len(room.gpus)])
        if len(room.gpus) == 1:
            return (count,)
        context, measured = self._context(n_ctx, kv, True)
        graph = compute_bytes(self.model, context) if measured is None else measured
        beside = self._extras(n_ctx, True)[1]
        pairs = zip_longest(room.gpus, beside[: len(room.gpus)], fillvalue=0)
        rooms = [round(free / MARGIN) - taken for free, taken in pairs]
        return shared_out(offloaded(self.model, context, self.cpu_experts)[self.layers - count :], rooms, graph)

    def on_gpus(self, n_ctx: int, kv: KvType, count: int, room: Room) -> bool:
        on = self.need(n_ctx, kv, self.spread(n_ctx, kv, count, room)).on
        return all(MARGIN * taken <= free for taken, free in zip(on, room.gpus, strict=False))

    def _context(self, n_ctx: int, kv: KvType, on_gpu: bool) -> tuple[ContextSize, int | None]:
        scores, measure = self.options.scores and not on_gpu, self.options.measure
        measured = measure(n_ctx, kv, scores) if measure and not self.cpu_experts else None
        rollback = ROLLBACK if self.options.drafts else 0
        return ContextSize(n_ctx, kv, rollback=rollback, flash=not scores or kv in PACKED), measured

    def _extras(self, n_ctx: int, on_gpu: bool) -> tuple[int, Sequence[int]]:
        """Bytes of the draft model, the heads and the like, and of them on each GPU if the model uses GPUs."""
        heads, place = self.options.heads, self.draft_on if on_gpu else None
        before = (0,) * (place or 0)
        if self.draft is None:
            return heads, () if place is None else (*before, heads)
        flash = not (self.options.scores and not on_gpu)
        least = min(n_ctx, self.draft.longest or n_ctx)
        context = ContextSize(least, leaves=_DRAFT_LEAVES, rollback=0, flash=flash)
        whole = len(self.draft.layers) + 1
        need = need_of(self.draft, context, () if place is None else (*before, whole))
        return heads + need.total, () if place is None else (*before, heads + need.gpu)


def fit(header: Header, devices: Sequence[Device], options: FitOptions | None = None) -> Fit:
    """Chooses context, KV type and GPU layers, or finds that the model is too big.

    Tries places in this order: all layers on this machine's GPUs; all on these and on other machines' GPUs; the same,
    but the experts of as few layers as possible in main memory; some layers on GPUs; all in main memory. In each place
    it tries contexts from long to short, at most ``DEFAULT_CONTEXT`` unless one is requested, each with an F16 KV
    cache before Q8_0. A place that fits fewer than 4,096 tokens is used only if no place fits 4,096.
    """
    options = options or FitOptions()
    layers, experts = options.gpu_layers, options.cpu_experts
    room = room_of([device for device in devices if layers or device.kind == "cpu"])
    place = room.names.index(options.draft_device) if options.draft_device in room.names else 0 if room.own else None
    place = None if options.draft_device == "CPU" else place
    sizes = [size_of(each) for each in (header, options.draft) if each]
    for at, tokens in enumerate(options.longest[: len(sizes)]):
        sizes[at] = replace(sizes[at], longest=tokens)
    count = min(max(0, experts), len(sizes[0].layers))
    case = _Case(sizes[0], options, sizes[1] if options.draft else None, place, count, borrows=room.own > 0)
    chosen = _fit(case, room, chooses=experts < 0 and layers < 0)
    if layers < 0 or chosen.verdict == "too big":
        return chosen
    count = min(layers, case.layers)
    shares = case.spread(chosen.n_ctx, chosen.kv_type, count, room) if count and room.gpus else ()
    return replace(
        chosen,
        gpu_layers=layers,
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

    ``context`` is the one that it was trained with, ``want_ctx`` the requested one, if there is one.
    """
    room = room_of(devices)
    model, draft = rough_size(size, params, context or 0), rough_size(draft_size) if draft_size else None
    return _fit(_Case(model, FitOptions(n_ctx=want_ctx), draft, draft_on=0 if room.own else None), room)


def _fit(case: _Case, room: Room, chooses: bool = False) -> Fit:
    """See ``fit``; ``chooses``: whether experts may stay in memory if necessary."""
    wanted = case.options.n_ctx
    top = wanted or min(case.model.n_ctx_train or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    contexts = [top] if wanted else [top, *(n for n in _SHORTER if n < top)]
    floor = min(_COMFORTABLE, top)
    for group in ([n for n in contexts if n >= floor], [n for n in contexts if n < floor]):
        for place in _places(case, room, chooses and any(layer.experts for layer in case.model.layers)):
            for n_ctx in group:
                for kv in case.kv_types:
                    found = _placed(case, place, n_ctx, kv)
                    if found:
                        return found
    tried = top if wanted else floor
    least = case.need(tried, case.kv_types[-1], ())
    instead = alternative(case.model, least, room, _longest(case, room, tried) if wanted else None)
    need = case.need(tried, case.kv_types[0], ())
    why = f"{parts(need)}, but {spare(room)}. {instead}"
    return Fit("too big", gpu_layers=0, n_ctx=tried, kv_type=case.kv_types[0], need=need, why=why)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a model: ``whole`` is all usable memory, ``room`` the part of it that the model may use."""

    verdict: Verdict
    whole: Room
    room: Room
    experts: bool = False  # whether the experts of some layers stay in memory


def _places(case: _Case, room: Room, experts: bool = False) -> Iterator[_Place]:
    if sum(room.gpus):
        whole = [_Place("gpu", room, room)]
        if 0 < room.own < len(room.gpus) and not case.options.split:
            own = slice(0, room.own)
            used = replace(room, gpus=room.gpus[own], names=room.names[own], machines=room.machines[own])
            whole.insert(0, _Place("gpu", room, used))
        yield from whole
        if experts:
            yield from (replace(place, verdict="split", experts=True) for place in whole)
        yield _Place("split", room, room)
    yield _Place("memory", room, room)


def _placed(case: _Case, place: _Place, n_ctx: int, kv: KvType) -> Fit | None:
    room = place.room
    count = case.layers if place.verdict == "gpu" or place.experts else 0
    if place.experts:  # as few as the GPUs allow; those of all layers, if that is not enough
        layers, few = len(case.model.layers), case
        more = _most(0, layers - 1, lambda n: not replace(few, cpu_experts=n).on_gpus(n_ctx, kv, few.layers, room))
        case = replace(case, cpu_experts=more + 1)
    elif place.verdict == "split":
        count = _most(1, case.layers - 1, lambda n: case.on_gpus(n_ctx, kv, n, room))
        if count < 2:  # the output alone, which is no faster
            return None
    shares = case.spread(n_ctx, kv, count, room) if count else ()
    need = case.need(n_ctx, kv, shares)
    if room.used(need) > 1:
        return None
    kept = case.cpu_experts if count else 0
    where = _where(place, shares, case.layers)
    where += f", but the experts of {kept} layers in memory" if kept else ""
    return Fit(
        verdict="split" if kept else place.verdict,
        gpu_layers=-1 if count == case.layers else count,
        n_ctx=n_ctx,
        kv_type=kv,
        need=need,
        why=f"{parts(need)}{', ' if where else ''}{where}; {spare(place.whole)}.",
        shares=_named(room, shares),
        cpu_experts=kept,
        room=round((sum(room.gpus) if place.verdict == "gpu" and not kept else room.total) / MARGIN),
    )


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``high`` that fits if all smaller ones do; ``low`` if none above it does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _named(room: Room, shares: Sequence[int]) -> Mapping[str, int]:
    return {name: count for name, count in zip(room.names, shares, strict=False) if count}


def _where(place: _Place, shares: Sequence[int], layers: int) -> str:
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


def _longest(case: _Case, room: Room, below: int) -> int | None:
    """The longest context that fits and that the model supports, in steps of 256 tokens; None below 512."""

    def fits(pages: int) -> bool:
        return any(_placed(case, place, 256 * pages, case.kv_types[-1]) for place in _places(case, room))

    pages = _most(1, min(below, case.model.longest or below) // 256, fits)
    return 256 * pages if pages > 1 else None
