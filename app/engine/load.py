"""Opens the models of a plan, measures them, and creates a session."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llama_cpp

from slipstream.app.chats.reading import ChatReader
from slipstream.app.engine.calibrate import SAME_DISTRIBUTION, SAMPLE_TEXT, kept_promise, measure_plain
from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.devices import (
    describe,
    placement,
)
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.plan import DRAFT, contexts_of, options_for, plan_load
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock
from slipstream.app.engine.tune import Threads
from slipstream.app.protocol import NO_MMPROJ, PLAIN, Load, Loaded
from slipstream.app.settings.disabled_drafters import known_left_out
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.memory import Memory
from slipstream.drafters.resources import Resources
from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index.index import TextIndex, open_index
from slipstream.drafters.vocabulary_mapping import VocabularyMapping, shared_controls
from slipstream.models.chat_template.template import ChatTemplate
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.lora import Adapter
from slipstream.models.gguf.probe import ProbeRecord, probe_once
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import same_vocabulary
from slipstream.models.heads.file import identity
from slipstream.models.library.catalog import catalog
from slipstream.models.library.pairing import names_of
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import built, physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.outside import shown_path
from slipstream.models.sampling.recommended import checked, recommended

if TYPE_CHECKING:
    from slipstream.models.vision.projector import Projector

RETRIEVAL: Final = Retrieval.name
_MEASURING: Final = 0.9
"""Progress when the files are loaded and measuring begins."""
_SMALL: Final = 1 << 30
"""Threads are tuned below this many bytes of weights; in larger models they hardly wait for each other."""


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
        SlipstreamError: If a file is not a chat model, or there is not enough memory.
    """
    plan = plan_load(request, on_progress, note)
    header, fit, guard = plan.header, plan.fit, plan.guard
    with ExitStack() as opened:
        model = _open_model(
            header.path, placement(request, fit), lambda share: on_progress(0.8 * share), opened, plan.adapters
        )
        rope = plan.contexts.scaling(fit.n_ctx)
        options = options_for(request, fit.n_ctx, fit.kv_type, fit.gpu_layers != 0, plan.scores, rope)
        target = opened.enter_context(closing(LlamaTarget(model, options, drafts=request.drafter != PLAIN)))
        draft, mapping = None, None
        if plan.draft_place:
            open_draft = partial(_open_draft, request, plan.draft_place, model, target, options, on_progress, opened)
            draft, mapping = guard.run(DRAFT, open_draft, (None, None))
        threads = None
        if not request.threads and header.weight_bytes < _SMALL and not model.recurrent:
            threads = Threads(target, [draft] if draft else [], max(1, physical_cores() - request.spare_cores))
        on_progress(_MEASURING)
        milliseconds = measure_plain(target)
        projector, blind = _projector(request, model, target, fit.on_own_gpus, opened, on_progress)
        seen = projector.tokens if projector else None
        template = _template(model)
        longest = plan.contexts.longest
        prompts = PromptBuilder(template, model.tokenize, model.opening(), model.token_bytes, seen, blind, longest)
        opened.callback(prompts.close)
        derived = Path(request.derived) if request.derived else None
        index = guard.run(RETRIEVAL, lambda: _open_index(request, header, opened), None)
        changed = " ".join(each.key for each in plan.adapters)  # drafters learn separately for adapted text
        memory = Memory(derived, _learner(header.fingerprint, changed)) if derived else None
        parts = Resources(
            target.abilities,
            draft,
            plan.heads,
            target,
            derived,
            text_index=index,
            memory=memory,
            header=header,
            vocabulary_mapping=mapping,
            guard=guard,
        )
        # the fingerprint covers headers and sizes alone, and files with different weights may share it
        weights = f"{header.fingerprint} {identity(header)}"
        key = f"{weights} {llama_cpp.__version__} {target.abilities.n_ctx} {options}{changed}"
        key += f" {projector.fingerprint}" if projector else ""
        machine_key = f"{key} {built()} {dict(fit.shares)} {request.devices.draft} {physical_cores()}"
        store = KvCacheStore(target, key, request.states_limit, Path(request.states) if request.states else None)
        promise = SAME_DISTRIBUTION
        if all(each.same_text for each in plan.adapters):
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
        # reports an unusable drafter now, not at the first reply
        drafters.get(request.drafter, lambda share: on_progress(_MEASURING + (1 - _MEASURING) * share))
        opened.pop_all()
    on_progress(1.0)
    count = threads.count if threads else request.threads or physical_cores()
    sampling, source = _recommended(header)
    return session, Loaded(
        name=header.name,
        architecture=header.architecture,
        n_ctx=target.abilities.n_ctx,
        fingerprint=header.fingerprint,
        device=describe(
            fit,
            plan.found,
            count,
            model.n_layer + 1,
            plan.draft_place if draft else None,
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
        remark=" ".join(plan.found.lacking),
        machines=list(plan.machines),
        lora=request.lora,
        n_ctx_trained=plan.contexts.trained,
        n_ctx_longest=plan.contexts.longest,
        rope=rope.words if rope and target.abilities.n_ctx > plan.contexts.trained else "",
        images=projector is not None,
    )


def _learner(fingerprint: str, changed: str) -> str:
    """Identifies the model and its adapters for the data that drafters learn."""
    return hashlib.sha256(f"{fingerprint} {changed}".encode()).hexdigest() if changed else fingerprint


def _recommended(header: Header) -> tuple[dict[str, float], str]:
    """The sampling that the model's authors recommend, and its source."""
    if found := recommended(header.metadata):
        return found, "its file"
    found = checked(catalog().sampling(names_of(header)))
    return found, "the catalogue" if found else ""


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
    """Opens the image encoder, or returns the error for a prompt with an image."""
    name = shown_path(model.header.name)
    if not request.mmproj:
        if request.mmproj_unsure:
            files = " or ".join(f"--mmproj {shlex.quote(shown_path(file))}" for file in request.mmproj_unsure)
            unsure = "files here that fit its width do not say whether they belong to it"
            return None, UsageError(f"{name} cannot see images: {unsure}.", f"If one does, start with {files}.")
        return None, UsageError(f"{name} cannot see images: no mmproj file is known for it.", NO_MMPROJ)
    from slipstream.models.vision.projector import Projector  # loads mtmd

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
        same = read_header(path).fingerprint == model.header.fingerprint  # the draft model is the target's own file
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


def _open_index(request: Load, header: Header, opened: ExitStack) -> TextIndex | None:
    return opened.enter_context(closing(open_index(Path(request.index), header))) if request.index else None


def _template(model: LlamaModel) -> ChatTemplate:
    source = model.header.chat_template
    return ChatTemplate(source, *model.special_names()) if source else ChatTemplate.default()
