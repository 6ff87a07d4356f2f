"""Plans a load: checks the files, leaves out drafters that fail, and chooses the context and the devices."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from slipstream.app.engine.calibrate import flash_attention_is_slower
from slipstream.app.engine.devices import FoundDevices, draft_device, draft_placement, find, proportions
from slipstream.app.engine.drafter_list import check_drafter
from slipstream.app.protocol.requests import PLAIN, Load
from slipstream.drafters import registry
from slipstream.drafters.crash_note import set_devices
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.guard import Guard
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.lora import Adapter, read_adapter
from slipstream.models.gguf.probe import ProbeRecord, probe_once
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.rope import ContextRange, RopeScaling, context_range
from slipstream.models.gguf.vocabulary import check_vocabulary
from slipstream.models.heads.matching_heads import HEAD_METHODS, matching_heads
from slipstream.models.library.catalog import catalog
from slipstream.models.library.names import names_of
from slipstream.models.llama.dry_run import DryRun
from slipstream.models.llama.library import built
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import KV_TYPES, ContextOptions
from slipstream.models.memory.fit import Fit, FitOptions, fit
from slipstream.models.memory.need import projector_bytes, size_of
from slipstream.models.memory.room import room_of
from slipstream.models.outside import shown_path
from slipstream.models.types import PACKED, KvType

_TIGHT: Final = (0.7, 1.3)
"""If the estimated need is between these shares of the usable memory, a dry run of some milliseconds refines it."""
_LEAST_CONTEXT: Final = 512
"""Minimum context after halving, in tokens: a smaller one frees hardly any memory, and is too small for a chat."""
DRAFT: Final = DraftModel.name
HEADS: Final = ("medusa", "kangaroo", "space", *HEAD_METHODS)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is loaded, and where."""

    header: Header  # of the target
    adapters: Sequence[Adapter]  # of the target
    contexts: ContextRange  # the contexts that the target can have
    found: FoundDevices  # the devices
    fit: Fit
    scores: bool  # see ``ContextOptions``
    guard: Guard  # records the drafters that failed
    draft_place: Placement | None  # of the draft model; None without one
    heads: Mapping[str, Path]  # files of trained heads, by method
    machines: Sequence[str]  # other machines that are used


def plan_load(request: Load, on_progress: Callable[[float | None], None], note: memoryview | None = None) -> Plan:
    """Checks the files of a request and fits them to the memory; drafters that fail are left out."""
    check_drafter(request.drafter)
    guard, header = Guard(request.failed, note), read_header(Path(request.model))
    check_vocabulary(header)
    adapters = [read_adapter(Path(each.path), each.scale, header) for each in request.adapters]
    contexts = _check_context(request, header)
    draft_header = guard.run(DRAFT, lambda: _draft_header(request), None)
    heads = _heads(request, header, guard)
    found = find(request)
    if request.probed:
        fitted(request, header, None, found, tried=False)
        record = ProbeRecord(Path(request.probed), built())
        probe_once([header.path], record, lambda: on_progress(None))
        risky = {DRAFT: draft_header.path if draft_header else None, **{name: heads.get(name) for name in HEAD_METHODS}}
        for name, file in risky.items():
            if file:
                guard.run(name, partial(probe_once, [file], record, lambda: on_progress(None)), None)
    scores = _writes_scores(request, found)
    draft_header = None if DRAFT in guard.failed else draft_header
    heads = {name: file for name, file in heads.items() if name not in guard.failed}
    try:
        fit = fitted(request, header, draft_header, found, heads=heads.values(), scores=scores)
    except SlipstreamError:
        if not (draft_header or heads):
            raise
        fit = fitted(request, header, None, found, scores=scores)
        for name in (*heads, *([DRAFT] if draft_header else [])):
            guard.fail(name, SlipstreamError("there is no memory for it beside the model"))
        draft_header, heads = None, {}
    fit = replace(fit, n_ctx=max(min(_LEAST_CONTEXT, fit.n_ctx), fit.n_ctx >> request.halved))
    draft_place = draft_placement(request, fit, found, draft_device(request.devices, found)) if draft_header else None
    machines = list(dict.fromkeys([*fit.machines, *(draft_place.machines if draft_place else ())]))
    if note is not None:
        set_devices(note, bool(fit.shares), bool(machines))
    return Plan(
        header=header,
        adapters=adapters,
        contexts=contexts,
        found=found,
        fit=fit,
        scores=scores,
        guard=guard,
        draft_place=draft_place,
        heads=heads,
        machines=machines,
    )


def fitted(
    request: Load,
    header: Header,
    draft: Header | None,
    found: FoundDevices,
    heads: Iterable[Path] = (),
    scores: bool = False,
    tried: bool = True,
) -> Fit:
    """Chooses context, KV type and layers on each GPU, where the request leaves them open.

    ``tried`` says whether llama.cpp may read the file; if not, only a model that is far too large is rejected.
    """
    beside = [*heads, *(Path(each.path) for each in request.adapters)]
    longest = [contexts_of(each).longest for each in (header, draft) if each]
    vision = projector_bytes(Path(request.mmproj) if request.mmproj else None)
    options = FitOptions(
        n_ctx=request.n_ctx or None,
        draft=draft,
        kv_type=_kv_type(request, header),
        heads=sum(path.stat().st_size for path in beside if path.exists()) + vision,
        scores=scores,
        gpu_layers=request.gpu_layers,
        split=proportions(request.devices, found),
        draft_device=draft_device(request.devices, found),
        longest=longest,
        drafts=request.drafter != PLAIN,
        cpu_experts=request.cpu_experts,
    )
    chosen = fit(header, found.devices, options)
    used = room_of(found.devices).used(chosen.need)
    if tried and _TIGHT[0] < used < _TIGHT[1]:
        with closing(DryRun(header.path)) as run:

            def measure(n_ctx: int, kv: KvType, scores: bool) -> int | None:
                return run.graph_bytes(options_for(request, n_ctx, kv, scores=scores))

            chosen = fit(header, found.devices, replace(options, measure=measure))
    if chosen.verdict == "too big" and (tried or used >= _TIGHT[1]):
        asked = f" with a context of {request.n_ctx:,} tokens" if request.n_ctx else ""
        why = " ".join((*found.lacking, chosen.why))
        raise SlipstreamError(f"{shown_path(header.path)}{asked} does not fit this machine.", why)
    return chosen


def contexts_of(header: Header) -> ContextRange:
    return context_range(header, catalog().scaling(names_of(header)))


def options_for(
    request: Load,
    n_ctx: int,
    kv: KvType,
    borrow: bool = True,
    *,
    scores: bool = False,
    rope: RopeScaling | None = None,
    same_text: bool = False,
    values: KvType | None = None,
) -> ContextOptions:
    """Combines the chosen values and those of the request; see ``ContextOptions``."""
    return ContextOptions(
        n_ctx=n_ctx,
        kv=kv,
        values=values,
        flash=True if kv in PACKED else None,
        scores=scores,
        same_text=same_text,
        threads=request.threads,
        borrow=borrow,
        rope=rope,
    )


def _check_context(request: Load, header: Header) -> ContextRange:
    contexts = contexts_of(header)
    if request.n_ctx < 0:
        raise UsageError(f"context is {request.n_ctx}; it must be 0 (the model's own) or more.")
    if contexts.longest and request.n_ctx > contexts.longest:
        by = f", by {contexts.beyond.words} of the {contexts.trained:,} it was trained on" if contexts.beyond else ""
        raise UsageError(
            f"a context of {request.n_ctx:,} tokens is too long for {header.title}: {contexts.longest:,} at most{by}.",
            f"Ask for {contexts.longest:,} or fewer: --context N, /context N, or the setting model.context.",
        )
    return contexts


def _kv_type(request: Load, header: Header) -> KvType | None:
    asked = next((kind for kind in KV_TYPES if kind == request.kv_type), None)
    if asked in PACKED and not size_of(header).packable:
        raise UsageError(
            f"{header.title} cannot have a KV cache of {asked}: that needs flash attention, and heads whose width is a "
            "multiple of 32.",
            "Take --kv-type f16 or auto.",
        )
    return asked


def exact_kv(request: Load, header: Header) -> KvType | None:
    """The KV cache's type with which passes of all kinds may be bit-equal; None if there is none.

    llama.cpp's attention sums an F16 cache in other orders for other rows and threads; with quantized keys, never.
    """
    packed: dict[str, KvType | None] = {"auto": "q8_0", "q8_0": "q8_0", "q4_0": "q4_0"}
    return packed.get(request.kv_type) if size_of(header).packable else None


def _writes_scores(request: Load, found: FoundDevices) -> bool:
    """Whether attention stores its scores: faster on some CPUs."""
    on_gpu = request.gpu_layers and found.gpus
    if request.wants_exact == "always" or on_gpu or not request.measured_with:
        return False
    return flash_attention_is_slower(Path(request.measured_with), Path(request.derived) if request.derived else None)


def _draft_header(request: Load) -> Header | None:
    if not request.draft_model:
        return None
    header = read_header(Path(request.draft_model))
    check_vocabulary(header)
    return header


def _heads(request: Load, header: Header, guard: Guard) -> dict[str, Path]:
    broken: list[tuple[str, SlipstreamError]] = []
    adapters = [Path(each.path) for each in request.adapters]
    trained_with_it = (path for each in adapters for path in sorted(each.parent.glob(f"{each.stem}-*.gguf")))
    files = [*map(Path, request.heads), *trained_with_it]  # the last one of a method counts
    found = matching_heads(header, files, lambda path, error: broken.append((path.name, error)))
    asked = registry.parts_of(request.drafter)
    for file, error in broken:
        for method in HEADS:
            if method not in found and (method in file or method in asked):
                guard.fail(method, error)
    return found
