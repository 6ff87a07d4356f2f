"""Will a model fit this machine: what it takes, and how it is best opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from slipstream.models.fit_need import Need as Need
from slipstream.models.fit_need import Opening, placed
from slipstream.models.fit_room import MARGIN, Room, room_of
from slipstream.models.fit_rough import rough_shape
from slipstream.models.fit_shape import Shape, shape_of
from slipstream.models.fit_words import in_its_place, parts, spare
from slipstream.models.gguf import Header
from slipstream.models.runtime.devices import Device

if TYPE_CHECKING:  # llama.cpp: this module counts without it
    from slipstream.models.runtime.options import KvType

Verdict = Literal["gpu", "split", "memory", "too big"]
Measure = Callable[[int, "KvType", bool], int | None]
"""Asks llama.cpp for the bytes of the graph's buffer, with a context, a type of KV cache, and whether scores are
written down; None if it cannot say."""

USUAL_CONTEXT: Final = 8192
"""Tokens that a context has at most where nobody asks for more."""
_COMFORTABLE: Final = 4096
"""Tokens below which a place with more memory is better."""
_SHORTER: Final = (6144, 4096, 2048, 1024, 512)
_DRAFT_LEAVES: Final = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model is best opened on this machine.

    Attributes:
        verdict: "gpu": whole on the GPU; "split": some layers on it; "memory": all on the processor; "too big".
        gpu_layers: Layers on the GPU, the output counted as one; -1 for all.
        n_ctx: Context in tokens; for "too big" the one that was tried.
        kv_type: Type of the KV cache.
        need: What it takes.
        why: In a sentence or two for people: the numbers, and for "too big" what would fit.
    """

    verdict: Verdict
    gpu_layers: int
    n_ctx: int
    kv_type: KvType
    need: Need
    why: str


@dataclass(frozen=True, slots=True)
class _Case:
    """A model, what drafts for it (a model, bytes of heads), on how many GPUs they would be, and how it attends."""

    shape: Shape
    draft: Shape | None = None
    measure: Measure | None = None
    gpus: int = 1
    heads: int = 0
    scores: bool = False

    def need(self, n_ctx: int, kv: KvType, gpu_layers: int, rows: int = 64, leaves: int = 16) -> Need:
        scores = self.scores and not gpu_layers
        flash = not scores or kv == "q8_0"
        measured = self.measure(n_ctx, kv, scores) if self.measure else None
        own = placed(self.shape, Opening(n_ctx, kv, rows, leaves, flash=flash), gpu_layers, self.gpus, measured)
        own += Need(self.heads, 0, 0, self.heads if gpu_layers else 0)
        if self.draft is None:
            return own
        opening = Opening(
            min(n_ctx, self.draft.n_ctx_train or n_ctx), rows=rows, leaves=_DRAFT_LEAVES, flash=not scores
        )
        return own + placed(self.draft, opening, -1 if gpu_layers else 0, self.gpus)


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
    """Adds up what a model takes once it is open, as ``ContextOptions`` opens it.

    Args:
        header: Of the model.
        n_ctx: Context in tokens.
        kv_type: Type of the KV cache.
        n_gpu_layers: Layers on the GPU, the output counted as one; -1 for all.
        rows: Most rows of one evaluation.
        leaves: Most leaves of a tree.
        draft: Header of its draft model.
        flash: Whether attention is computed without its scores being written down; on GPUs it always is.
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
    """Chooses context, KV type and GPU layers, or says what is too much.

    Whole on the GPU is best, then split, then in memory. In each place the longest context is taken, of 8,192 tokens at
    most if nobody asked for more; and for each, a KV cache of F16 before one of Q8_0. A place that holds no 4,096
    tokens is left for one that does.

    Args:
        header: Of the model.
        devices: What the machine has, as ``slipstream.models.runtime.devices.devices`` lists it.
        want_ctx: The context that its owner asks for; None for the longest sensible one.
        draft: Header of its draft model.
        kv_type: The type of KV cache that it must have; None to choose.
        measure: Asks llama.cpp for the size of its graph's buffer; None to count it here.
        heads: Bytes of trained heads that draft for it.
        scores: Whether attention on the processor writes its scores down.
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
    """Judges a model whose header is not at hand, from typical sizes of models like it.

    Args:
        size: Bytes of its file.
        params: Number of its parameters; 0 if not known.
        devices: What the machine has.
        context: Tokens that it was trained on, if known.
        want_ctx: The context that its owner asks for.
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
    instead = in_its_place(case.shape, least, room, shorter)
    need = case.need(tried, kv, 0)
    return Fit("too big", 0, tried, kv, need, f"{parts(need)}, but {spare(room)}. {instead}")


def _places(room: Room) -> Iterator[Verdict]:
    if room.gpu:
        yield from ("gpu", "split")
    yield "memory"


def _kv_types(shape: Shape, kv_type: KvType | None) -> list[KvType]:
    if kv_type:
        return [kv_type]
    return ["f16", "q8_0"] if shape.packs and any(layer.keys for layer in shape.layers) else ["f16"]


def _placed(case: _Case, room: Room, verdict: Verdict, n_ctx: int, kv: KvType) -> Fit | None:
    """The model in one place, or None if it does not fit there."""
    layers = {"gpu": -1, "memory": 0}.get(verdict, 0)
    if verdict == "split":
        low, high = 1, len(case.shape.layers)  # 1 is the output alone, which gains nothing
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
    """The longest context that fits and that it was trained on, in steps of 256 tokens; None if not even 512 do."""
    low, high = 1, min(below, case.shape.n_ctx_train or below) // 256
    while low < high:
        middle = (low + high + 1) // 2
        kv = _kv_types(case.shape, kv_type)[-1]
        fits = any(_placed(case, room, verdict, 256 * middle, kv) for verdict in _places(room))
        low, high = (middle, high) if fits else (low, middle - 1)
    return 256 * low if low > 1 else None
