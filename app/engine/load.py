"""Fits a model and its draft model to the memory, opens and measures them, and makes a session of them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llama_cpp

from slipstream.app.chats.reading import ChatReader
from slipstream.app.engine.calibrate import SAME_DISTRIBUTION, SAMPLE_TEXT, kept_promise, measure_plain
from slipstream.app.engine.devices import (
    Found,
    describe,
    draft_device,
    draft_placement,
    find,
    placement,
    proportions,
)
from slipstream.app.engine.drafter_list import Drafters, check_drafter
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import ChatModel, Session
from slipstream.app.engine.stats import PlainClock
from slipstream.app.engine.tune import Threads, flash_attention_is_slower
from slipstream.app.protocol import NO_MMPROJ, PLAIN, Load, Loaded
from slipstream.app.settings.disabled_drafters import known_left_out
from slipstream.drafters import registry
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.guard import Guard
from slipstream.drafters.memory import Memory
from slipstream.drafters.resources import Resources
from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index.index import TextIndex, open_index
from slipstream.drafters.vocabulary_mapping import VocabularyMapping, shared_controls
from slipstream.models.chat_template.template import ChatTemplate
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.lora import Adapter, read_adapter
from slipstream.models.gguf.probe import ProbeRecord, probe_once
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.rope import ContextRange, RopeScaling, context_range
from slipstream.models.gguf.vocabulary import check_vocabulary, same_vocabulary
from slipstream.models.heads.matching_heads import HEAD_METHODS, matching_heads
from slipstream.models.library.catalog import catalog
from slipstream.models.library.pairing import names_of
from slipstream.models.library.projectors import projector_bytes
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import built, physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import KV_TYPES, ContextOptions
from slipstream.models.memory.dry_run import DryRun
from slipstream.models.memory.fit import Fit, fit, room_of
from slipstream.models.memory.shape import shape_of
from slipstream.models.outside import shown_path
from slipstream.models.sampling.recommended import checked, recommended
from slipstream.models.types import PACKED, KvType

if TYPE_CHECKING:
    from slipstream.models.vision.projector import Projector

_TIGHT: Final = (0.7, 1.3)
"""Shares of the usable memory between which a dry run measures the need: a few milliseconds for the last per cent."""


def fitted(
    request: Load,
    header: Header,
    draft: Header | None,
    found: Found,
    heads: Iterable[Path] = (),
    scores: bool = False,
    tried: bool = True,
) -> Fit:
    """Chooses context, KV type and layers on each GPU, where the request leaves them open.

    Args:
        header: Of the model.
        draft: Of the draft model.
        found: The devices.
        heads: Files of trained heads that draft for it.
        scores: See ``ContextOptions``; for a model on the CPU.
        tried: Whether llama.cpp may read the file; if not, only a model that is far too large is rejected.

    Raises:
        SlipstreamError: If the model does not fit; the hint names what would.
    """
    beside = [*heads, *(Path(each.path) for each in request.lora)]
    longest = [contexts_of(each).longest for each in (header, draft) if each]
    vision = projector_bytes(Path(request.mmproj) if request.mmproj else None)
    choose = partial(
        fit,
        header,
        found.devices,
        want_ctx=request.n_ctx or None,
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
    chosen = choose(draft=draft)
    used = room_of(found.devices).used(chosen.need)
    if tried and _TIGHT[0] < used < _TIGHT[1]:
        with closing(DryRun(header.path)) as run:
            chosen = choose(
                draft=draft,
                measure=lambda n_ctx, kv, scores: run.graph_bytes(options_for(request, n_ctx, kv, scores=scores)),
            )
    if chosen.verdict == "too big" and (tried or used >= _TIGHT[1]):
        asked = f" with a context of {request.n_ctx:,} tokens" if request.n_ctx else ""
        why = " ".join((*found.lacking, chosen.why))
        raise SlipstreamError(f"{shown_path(header.path)}{asked} does not fit this machine.", why)
    return chosen


def contexts_of(header: Header) -> ContextRange:
    """The contexts of a model, by its file and by the catalogue."""
    return context_range(header, catalog().scaling(names_of(header)))


def options_for(
    request: Load,
    n_ctx: int,
    kv: KvType,
    borrow: bool = True,
    scores: bool = False,
    rope: RopeScaling | None = None,
) -> ContextOptions:
    """How the context is opened: what was chosen, and what the request sets.

    Args:
        request: What is to be loaded.
        n_ctx: Tokens that it holds.
        kv: Type of the KV cache; llama.cpp packs one with flash attention only.
        borrow: See ``ContextOptions``.
        scores: See ``ContextOptions``.
        rope: See ``ContextOptions``.
    """
    return ContextOptions(
        n_ctx=n_ctx,
        kv=kv,
        flash=True if kv in PACKED else None,
        scores=scores,
        same_text=request.same_text,
        threads=request.threads,
        borrow=borrow,
        rope=rope,
    )


def _check_context(request: Load, header: Header) -> ContextRange:
    """Rejects a context that the model cannot have.

    Raises:
        UsageError: Names the longest one.
    """
    contexts = contexts_of(header)
    if request.n_ctx < 0:
        raise UsageError(f"context is {request.n_ctx}; it must be 0 (the model's own) or more.")
    if contexts.longest and request.n_ctx > contexts.longest:
        by = f", by {contexts.beyond.words} of the {contexts.trained:,} it was trained on" if contexts.beyond else ""
        raise UsageError(
            f"a context of {request.n_ctx:,} tokens is too long for {header.name}: {contexts.longest:,} at most{by}.",
            f"Ask for {contexts.longest:,} or fewer: --context N, /context N, or the setting model.context.",
        )
    return contexts


def _kv_type(request: Load, header: Header) -> KvType | None:
    """The type of KV cache that is asked for; None to choose.

    Raises:
        UsageError: If the model cannot have it.
    """
    asked = next((kind for kind in KV_TYPES if kind == request.kv_type), None)
    if asked in PACKED and not shape_of(header).packable:
        raise UsageError(
            f"{header.name} cannot have a KV cache of {asked}: that needs flash attention, and heads whose width is a "
            "multiple of 32.",
            "Take --kv-type f16 or auto.",
        )
    return asked or ("q8_0" if request.same_text else None)


DRAFT: Final = DraftModel.name
RETRIEVAL: Final = Retrieval.name
HEADS: Final = ("medusa", "kangaroo", "space", *HEAD_METHODS)
_MEASURING: Final = 0.9
"""Progress at which the files are read, and measuring begins."""
_LEAST_CONTEXT: Final = 512
"""Tokens; halving it further frees next to nothing, and leaves no room for a chat."""
_SMALL: Final = 1 << 30
"""Bytes of weights up to which threads are measured; in larger models they hardly wait for each other."""


def load(
    request: Load, on_progress: Callable[[float | None], None], note: memoryview | None = None
) -> tuple[Session, Loaded]:
    """Loads a model and its draft model.

    Args:
        on_progress: Called with 0 to 1; None while files are probed before their first use.
        note: See ``Guard``; its last byte is 1 while a GPU computes, and 2 while other machines do.

    Returns:
        The session, and its description for the interface.

    Raises:
        SlipstreamError: If a file is no model that can chat, or there is no memory.
    """
    check_drafter(request.drafter)
    guard, path = Guard(request.failed, note and note[:-1]), Path(request.model)
    header = read_header(path)
    check_vocabulary(header)
    adapters = [read_adapter(Path(each.path), each.scale, header) for each in request.lora]
    contexts = _check_context(request, header)
    draft_header = guard.run(DRAFT, lambda: _draft_header(request), None)
    heads = _heads(request, header, guard)
    found = find(request)
    if request.probed:
        fitted(request, header, None, found, tried=False)
        record = ProbeRecord(Path(request.probed), built())
        probe_once([path], record, lambda: on_progress(None))
        risky = {DRAFT: draft_header.path if draft_header else None, **{name: heads.get(name) for name in HEAD_METHODS}}
        for name, file in risky.items():
            if file:
                guard.run(name, partial(probe_once, [file], record, lambda: on_progress(None)), None)
    scores = _writes_scores(request, found)
    draft_header = None if DRAFT in guard.failed else draft_header
    heads = {name: file for name, file in heads.items() if name not in guard.failed}
    try:
        fit = fitted(request, header, draft_header, found, heads.values(), scores)
    except SlipstreamError:
        if not (draft_header or heads):
            raise
        fit = fitted(request, header, None, found, (), scores)
        for name in (*heads, *([DRAFT] if draft_header else [])):
            guard.fail(name, SlipstreamError("there is no memory for it beside the model"))
        draft_header, heads = None, {}
    fit = replace(fit, n_ctx=max(min(_LEAST_CONTEXT, fit.n_ctx), fit.n_ctx >> request.halved))
    draft_place = draft_placement(request, fit, found, draft_device(request.devices, found)) if draft_header else None
    machines = list(dict.fromkeys([*fit.machines, *(draft_place.machines if draft_place else ())]))
    if note is not None:
        note[-1] = 2 if machines else bool(fit.shares)
    with ExitStack() as opened:
        model = _open_model(path, placement(request, fit), lambda share: on_progress(0.8 * share), opened, adapters)
        rope = contexts.scaling(fit.n_ctx)
        options = options_for(request, fit.n_ctx, fit.kv_type, fit.gpu_layers != 0, scores, rope)
        target = opened.enter_context(closing(LlamaTarget(model, options, drafts=request.drafter != PLAIN)))
        draft, mapping = None, None
        if draft_place:
            open_draft = partial(_open_draft, request, draft_place, model, target, options, on_progress, opened)
            draft, mapping = guard.run(DRAFT, open_draft, (None, None))
        threads = None
        if not request.threads and header.weight_bytes < _SMALL and not model.recurrent:
            threads = Threads(target, [draft] if draft else [], max(1, physical_cores() - request.spare_cores))
        on_progress(_MEASURING)
        milliseconds = measure_plain(target)
        projector, blind = _projector(request, model, target, bool(fit.shares), opened, on_progress)
        seen = projector.tokens if projector else None
        template = _template(model)
        prompts = PromptBuilder(template, model.tokenize, model.opening(), model.token_bytes, seen, blind)
        opened.callback(prompts.close)
        derived = Path(request.derived) if request.derived else None
        index = guard.run(RETRIEVAL, lambda: _open_index(request, header, opened), None)
        changed = " ".join(each.key for each in adapters)  # adapters change the likely text: drafters learn anew
        memory = Memory(derived, _learner(header.fingerprint, changed)) if derived else None
        parts = Resources(
            target.abilities,
            draft,
            heads,
            target,
            derived,
            text_index=index,
            memory=memory,
            header=header,
            vocabulary_mapping=mapping,
            guard=guard,
        )
        key = f"{header.fingerprint} {llama_cpp.__version__} {target.abilities.n_ctx} {options}{changed}"
        key += f" {projector.fingerprint}" if projector else ""
        machine_key = f"{key} {built()} {dict(fit.shares)} {request.devices.draft} {physical_cores()}"
        store = KvCacheStore(target, key, request.states_limit, Path(request.states) if request.states else None)
        promise = SAME_DISTRIBUTION
        if all(each.same_text for each in adapters):
            promise = kept_promise(target, milliseconds, memory, machine_key)
        past = None
        if index and request.chats:
            past = PastChats(
                ChatReader(Path(request.chats)), index, header.fingerprint, prompts, model.tokenize, model.n_vocab
            )
        disabled: Callable[[], frozenset[str]] = frozenset
        if request.left_out:
            disabled = partial(known_left_out, Path(request.left_out), header.fingerprint)
        profile = Profile(memory, machine_key, model.tokenize(SAMPLE_TEXT, special=False))
        drafters = Drafters(parts, target, milliseconds, profile, disabled)
        chat_model = ChatModel(target, model, prompts, PlainClock(), threads, model.new_remarks)

        def open_second() -> Session:
            with ExitStack() as own:
                other = own.enter_context(closing(LlamaTarget(model, options, drafts=False)))
                if threads:
                    other.use_threads(threads.count)
                if projector:
                    other.use_images(projector)
                alone = Drafters(Resources(other.abilities), other, milliseconds, Profile(None, ""))
                plain = ChatModel(other, model, prompts, PlainClock())
                return Session(plain, alone, KvCacheStore(other, key, 0), opened=own.pop_all())

        session = Session(chat_model, drafters, store, past, opened.pop_all(), open_second)
        opened.callback(session.close)
        # a drafter that does not fit is an error before the first token
        drafters.get(request.drafter, lambda share: on_progress(_MEASURING + (1 - _MEASURING) * share))
        opened.pop_all()
    on_progress(1.0)
    sampling, source = _recommended(header)
    return session, Loaded(
        name=header.name,
        architecture=header.architecture,
        n_ctx=target.abilities.n_ctx,
        fingerprint=header.fingerprint,
        device=describe(
            fit,
            found,
            threads.count if threads else request.threads or physical_cores(),
            model.n_layer + 1,
            draft_place if draft else None,
        ),
        promise=promise,
        drafters=drafters.offers(),
        plain_tok_per_s=1e3 / milliseconds,
        failed=drafters.new_failures(),
        token_bytes=model.token_bytes,
        reasoning=list(prompts.reasoning.switches),
        reasoning_default=prompts.reasoning.default,
        sampling=sampling,
        sampling_source=source,
        remark=" ".join(found.lacking),
        machines=machines,
        lora=request.lora,
        n_ctx_trained=contexts.trained,
        n_ctx_longest=contexts.longest,
        rope=rope.words if rope and target.abilities.n_ctx > contexts.trained else "",
        images=projector is not None,
    )


def _learner(fingerprint: str, changed: str) -> str:
    """Names the model for what drafters learn: its file, and the adapters that change it."""
    return hashlib.sha256(f"{fingerprint} {changed}".encode()).hexdigest() if changed else fingerprint


def _recommended(header: Header) -> tuple[dict[str, float], str]:
    """The sampling that the model's authors recommend, and its source."""
    if found := recommended(header.metadata):
        return found, "its file"
    found = checked(catalog().sampling(names_of(header)))
    return found, "the catalogue" if found else ""


def _writes_scores(request: Load, found: Found) -> bool:
    """Whether attention stores its scores: faster on some CPUs, but it cannot promise the same text."""
    on_gpu = request.gpu_layers and found.gpus
    if request.same_text or on_gpu or not request.measured_with:
        return False
    return flash_attention_is_slower(Path(request.measured_with), Path(request.derived) if request.derived else None)


def _open_model(
    path: Path,
    place: Placement,
    on_progress: Callable[[float], None],
    opened: ExitStack,
    adapters: Sequence[Adapter] = (),
) -> LlamaModel:
    return opened.enter_context(closing(LlamaModel(path, on_progress, place, adapters=adapters)))


def _projector(
    request: Load,
    model: LlamaModel,
    target: LlamaTarget,
    gpu: bool,
    opened: ExitStack,
    on_progress: Callable[[float | None], None],
) -> tuple[Projector | None, SlipstreamError | None]:
    """Opens the image encoder, or returns why the model sees no images, for a prompt that has one."""
    name = shown_path(model.header.name)
    if not request.mmproj:
        if request.mmproj_unsure:
            files = " or ".join(f"--mmproj {shlex.quote(shown_path(file))}" for file in request.mmproj_unsure)
            unsure = "files here that fit its width do not say whether they belong to it"
            return None, UsageError(f"{name} cannot see images: {unsure}.", f"If one does, start with {files}.")
        return None, UsageError(f"{name} cannot see images: no mmproj file is known for it.", NO_MMPROJ)
    from slipstream.models.vision.projector import Projector  # mtmd and its symbols

    path, threads = Path(request.mmproj), request.threads or physical_cores()
    try:
        read_header(path)
        if request.probed:
            record = ProbeRecord(Path(request.probed), built())
            probe_once([path], record, lambda: on_progress(None), Path(request.model))
        projector = Projector(path, model, target.most_rows, gpu, threads)
    except SlipstreamError as error:
        return None, SlipstreamError(f"{name} cannot see images: {error.title}", error.hint)
    target.use_images(opened.enter_context(closing(projector)))
    return projector, None


def _draft_header(request: Load) -> Header | None:
    if not request.draft_model:
        return None
    header = read_header(Path(request.draft_model))
    check_vocabulary(header)
    return header


def _open_draft(
    request: Load,
    place: Placement,
    model: LlamaModel,
    target: LlamaTarget,
    options: ContextOptions,
    on_progress: Callable[[float | None], None],
    opened: ExitStack,
) -> tuple[LlamaTarget, VocabularyMapping | None]:
    """Opens the draft model, and the mapping from its vocabulary to the target's if they differ."""
    with ExitStack() as own:
        path = Path(request.draft_model or "")
        same = read_header(path).fingerprint == model.header.fingerprint  # a draft of the target's own file
        adapters = model.adapters if same else ()
        small = _open_model(path, place, lambda share: on_progress(0.8 + 0.1 * share), own, adapters)
        contexts = contexts_of(small.header)
        n_ctx = contexts.shortened(target.abilities.n_ctx)
        small_options = ContextOptions(
            n_ctx,
            max_leaves=4,
            scores=options.scores and not place.devices,
            threads=request.threads,
            borrow=options.borrow,
            rope=contexts.scaling(n_ctx),
            rollback=0,
        )
        draft = own.enter_context(closing(LlamaTarget(small, small_options)))
        mapping = None
        if not same_vocabulary(model.header, small.header):
            mapping = VocabularyMapping(model, small, shared_controls(model.header, small.header))
        opened.enter_context(own.pop_all())
        return draft, mapping


def _heads(request: Load, header: Header, guard: Guard) -> dict[str, Path]:
    """The files of heads for this model; marks drafters whose file cannot be read as failed."""
    broken: list[tuple[str, SlipstreamError]] = []
    found = matching_heads(header, map(Path, request.heads), lambda path, error: broken.append((path.name, error)))
    asked = registry.parts_of(request.drafter)
    for file, error in broken:
        for method in HEADS:
            if method not in found and (method in file or method in asked):
                guard.fail(method, error)
    return found


def _open_index(request: Load, header: Header, opened: ExitStack) -> TextIndex | None:
    return opened.enter_context(closing(open_index(Path(request.index), header))) if request.index else None


def _template(model: LlamaModel) -> ChatTemplate:
    source = model.header.chat_template
    return ChatTemplate(source, *model.special_names()) if source else ChatTemplate.default()
