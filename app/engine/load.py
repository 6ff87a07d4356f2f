"""Opens the models of a plan, measures them, and creates a session."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llama_cpp

from slipstream.app.chats.reading import ChatReader
from slipstream.app.engine.calibrate import SAMPLE_TEXT, Threads, measure_plain
from slipstream.app.engine.chat_model import ChatModel
from slipstream.app.engine.devices import describe, placement
from slipstream.app.engine.drafter_list import Drafters
from slipstream.app.engine.exactness import Comparison, Decoding, KeptProofs, decide
from slipstream.app.engine.kv_cache_store import KvCacheStore
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.plan import DRAFT, Plan, contexts_of, exact_kv, options_for, plan_load
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock, SpillWatch
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import NO_MMPROJ, PLAIN, Load
from slipstream.app.settings.disabled_drafters import known_left_out
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.resources import Resources
from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index import TextIndex, open_index
from slipstream.drafters.vocabulary_mapping import VocabularyMapping, shared_controls
from slipstream.models.chat_template.ollama import from_go
from slipstream.models.chat_template.template import ChatTemplate
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.lora import Adapter
from slipstream.models.gguf.probe import ProbeRecord, probe_once
from slipstream.models.gguf.reader import Header, headers_kept, read_header
from slipstream.models.gguf.vocabulary import vocabulary_difference
from slipstream.models.heads.file import identity
from slipstream.models.library.catalog import catalog
from slipstream.models.library.names import names_of
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.devices import survey_here
from slipstream.models.llama.install import needed_version, prebuilt
from slipstream.models.llama.library import built, physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.outside import LONGEST_REASON, quoted, shown_path
from slipstream.models.sampling.sampler import checked, recommended

if TYPE_CHECKING:
    from slipstream.models.vision.projector import Projector

RETRIEVAL: Final = Retrieval.name
_PLAIN: Final = "plain"  # name of the kept time of a plain pass
_FULL: Final = 256 << 20  # a GPU with fewer bytes free is full: loading leaves more
_MEASURING: Final = 0.9  # progress when the files are loaded and measuring begins
_CONTINUES: Final = (
    "This model has no chat template: it continues text, and does not answer. Files named Instruct, Chat or it answer."
)
_NO_TEMPLATE: Final = ("", "{{ .Prompt }}")  # Ollama's for a file of which it knows none
_BATCH: Final = 512  # tokens of a chunk where a GPU reads the prompt and chunks must have one size
_CHUNKS: Final = ((1 << 28, 256), (1 << 30, 128))
"""Bytes of weights, and the tokens of a chunk below: about a quarter of a second on a processor of a few cores."""
_SMALL: Final = 1 << 30
"""Threads are tuned below this many bytes of weights; in larger models they hardly wait for each other."""


def load(
    request: Load, on_progress: Callable[[float | None], None], note: memoryview | None = None
) -> tuple[Session, Loaded]:
    """Loads a model and its draft model; ``on_progress`` gets 0 to 1, or None while files are first probed."""
    with headers_kept(), ExitStack() as opened:
        plan = plan_load(request, on_progress, note)
        loading = _Loading(request, plan, on_progress, opened)
        session = loading.session()
        loaded = loading.loaded(session)
        opened.pop_all()
    on_progress(1.0)
    return session, loaded


class _Loading:
    """The parts of a session, opened in the order in which they need each other."""

    def __init__(
        self, request: Load, plan: Plan, on_progress: Callable[[float | None], None], opened: ExitStack
    ) -> None:
        self._request, self._plan, self._on_progress, self._opened = request, plan, on_progress, opened
        fit, guard = plan.fit, plan.guard
        place, adapters = placement(request, fit), plan.adapters
        self._model = _open_model(plan.header.path, place, lambda share: on_progress(0.8 * share), opened, adapters)
        self._rope = plan.contexts.scaling(fit.n_ctx)
        self._changed = " ".join(each.key for each in adapters)
        self._learner = _learner(plan.header.fingerprint, self._changed)
        self._remarks = list(plan.found.lacking)
        self._template = self._chat_template(plan.header.chat_template, request.extras.template)
        self._decoding = self._decide()
        self._options = self._decoding.options
        self._target = self._open_target(opened, drafts=request.drafter != PLAIN)
        self._draft, self._mapping = None, None
        if plan.draft_place:
            open_draft = partial(self._open_draft, plan.draft_place)
            self._draft, self._mapping = guard.run(DRAFT, open_draft, (None, None))
        self._threads = self._tuned_threads()
        on_progress(_MEASURING)
        self._plain_ms = measure_plain(self._target)
        self._projector, blind = self._open_projector()
        self._prompts = self._open_prompts(blind)
        self._index = guard.run(RETRIEVAL, self._open_index, None)
        self._memory = DrafterMemory(Path(request.derived), self._learner) if request.derived else None
        self._key, self._machine_key = self._keys()

    def session(self) -> Session:
        request, target, model = self._request, self._target, self._model
        store = KvCacheStore(target, self._key, request.states_limit, Path(request.states) if request.states else None)
        chat_model = ChatModel(
            target,
            model,
            self._prompts,
            PlainClock(),
            threads=self._threads,
            spill=self._spill_watch(),
            end_marks=self._end_marks,
            max_tokens=self._request.extras.max_tokens,
            new_remarks=model.new_remarks,
            same_text=not self._decoding.why,
        )
        drafters, past = self._drafters(), self._past_chats()
        session = Session(
            chat_model, drafters, store, past_chats=past, opened=self._opened.pop_all(), open_second=self._open_second
        )
        self._opened.callback(session.close)
        # reports an unusable drafter now, not at the first reply
        drafters.get(request.drafter, lambda share: self._on_progress(_MEASURING + (1 - _MEASURING) * share))
        return session

    def loaded(self, session: Session) -> Loaded:
        request, plan, model, abilities = self._request, self._plan, self._model, self._target.abilities
        count = self._threads.count if self._threads else self._usual_threads
        draft_place = plan.draft_place if self._draft else None
        reasoning = self._prompts.reasoning
        sampling, source = checked(request.extras.sampling), "Ollama"
        if not sampling:
            sampling, source = _recommended(plan.header)
        return Loaded(
            name=plan.header.title,
            architecture=plan.header.architecture,
            n_ctx=abilities.n_ctx,
            fingerprint=plan.header.fingerprint,
            device=describe(plan.fit, plan.found, count, model.n_layer + 1, draft_place),
            promise=self._decoding.promise,
            promise_why=self._decoding.why,
            drafters=session.drafters.offers(),
            plain_tok_per_s=1e3 / self._plain_ms,
            failed=session.drafters.new_failures(),
            token_bytes=model.token_bytes,
            reasoning=list(reasoning.switches),
            reasoning_default=reasoning.default,
            sampling=sampling,
            sampling_source=source,
            remark=" ".join(self._remarks),
            machines=list(plan.machines),
            lora=request.adapters,
            n_ctx_trained=plan.contexts.trained,
            n_ctx_longest=plan.contexts.longest,
            rope=self._rope.words if self._rope and abilities.n_ctx > plan.contexts.trained else "",
            images=self._projector is not None,
        )

    def _open_target(self, opened: ExitStack, drafts: bool) -> LlamaTarget:
        target = opened.enter_context(closing(LlamaTarget(self._model, self._options, drafts=drafts)))
        if self._decoding.why:
            target.use_threads(self._usual_threads)
            weights = self._plan.header.weight_bytes
            chunk = next((tokens for size, tokens in _CHUNKS if weights < size), 64)
            target.use_chunks(_BATCH if self._plan.fit.shares else chunk)
        return target

    @property
    def _small(self) -> bool:
        return self._plan.header.weight_bytes < _SMALL and not self._model.recurrent

    @property
    def _usual_threads(self) -> int:
        cores = physical_cores()
        return self._request.threads or (max(1, cores - self._request.spare_cores) if self._small else cores)

    def _decide(self) -> Decoding:
        request, plan, model, fit = self._request, self._plan, self._model, self._plan.fit
        make = partial(options_for, request, fit.n_ctx, borrow=fit.gpu_layers != 0, rope=self._rope)
        kv, exact, why = exact_kv(request, plan.header), None, ""
        if not all(each.same_text for each in plan.adapters):
            why = "an adapter's matrices are not F32"
        elif kv is None:
            auto = request.kv_type == "auto"
            why = "its KV cache cannot be quantized" if auto else f"its KV cache is {request.kv_type}"
        else:
            # attention on a processor reads F16 values faster than quantized ones, in one order as well if keys are
            exact = make(kv, same_text=True, values="f16" if fit.kv_type == "f16" and not fit.shares else None)
        cores = physical_cores()
        tuned = self._small and not request.threads
        threads = {1, (cores + 1) // 2, max(1, cores - 1), cores} if tuned else {self._usual_threads}
        comparison = Comparison(
            fast=make(fit.kv_type, scores=plan.scores), exact=exact, why_not=why, threads=sorted(threads)
        )
        kept = None
        if request.proofs:
            memory = DrafterMemory(Path(request.proofs), self._learner)
            kept = KeptProofs(memory, f"{llama_cpp.__version__} {built()}", cores)
        key = f"{identity(plan.header)} {self._changed} {dict(fit.shares)} {cores}"
        text = model.tokenize(SAMPLE_TEXT, special=False)
        decoding = decide(model, comparison, request.wants_exact, text, kept=kept, key=key)
        if kept and kept.changed:
            what = f"Since the last load, {kept.changed} has changed"
            self._remarks.append(f"{what}: the same seed may give another text.")
        return decoding

    def _open_draft(self, place: Placement) -> tuple[LlamaTarget, VocabularyMapping | None]:
        """Opens the draft model, and the mapping from its vocabulary to the target's if they differ."""
        model, options = self._model, self._options
        with ExitStack() as own:
            path = Path(self._request.draft_model or "")
            same = read_header(path).fingerprint == model.header.fingerprint  # the draft model is the target's own file
            adapters = model.adapters if same else ()
            small = _open_model(path, place, lambda share: self._on_progress(0.8 + 0.1 * share), own, adapters)
            contexts = contexts_of(small.header)
            n_ctx = contexts.shortened(self._target.abilities.n_ctx)
            small_options = ContextOptions(
                n_ctx,
                max_leaves=4,
                scores=options.scores and not place.devices,
                threads=self._request.threads,
                borrow=options.borrow,
                rope=contexts.scaling(n_ctx),
                rollback=0,
            )
            draft = own.enter_context(closing(LlamaTarget(small, small_options)))
            mapping = None
            if vocabulary_difference(model.header, small.header):
                mapping = VocabularyMapping(model, small, shared_controls(model.header, small.header))
            self._opened.enter_context(own.pop_all())
            return draft, mapping

    def _tuned_threads(self) -> Threads | None:
        if self._request.threads or not self._small or self._decoding.why:
            return None
        drafts = [self._draft] if self._draft else []
        return Threads(self._target, drafts, self._usual_threads)

    def _open_projector(self) -> tuple[Projector | None, SlipstreamError | None]:
        request, model = self._request, self._model
        blind = f"{shown_path(model.header.title)} cannot see images:"
        if not request.mmproj and request.mmproj_unsure:
            files = " or ".join(f"--mmproj {shlex.quote(shown_path(file))}" for file in request.mmproj_unsure)
            unsure = "files here that fit its width do not say whether they belong to it"
            return None, UsageError(f"{blind} {unsure}.", f"If one does, start with {files}.")
        if not request.mmproj:
            return None, UsageError(f"{blind} no mmproj file is known for it.", NO_MMPROJ)
        try:
            from slipstream.models.vision.projector import Projector  # loads mtmd
        except (FileNotFoundError, RuntimeError):  # as llama-cpp-python reports a library that cannot be loaded
            cure = f"Install one with it: {prebuilt(needed_version())}"
            return None, SlipstreamError(f"{blind} this build of llama.cpp lacks mtmd.", cure)
        path, threads = Path(request.mmproj), request.threads or physical_cores()
        try:
            read_header(path)
            if request.probed:
                record = ProbeRecord(Path(request.probed), built())
                probe_once([path], record, lambda: self._on_progress(None), Path(request.model))
            projector = Projector(path, model, self._target.most_rows, self._plan.fit.on_own_gpus, threads)
        except SlipstreamError as error:
            return None, SlipstreamError(f"{blind} {error.title}", error.hint)
        self._target.use_images(self._opened.enter_context(closing(projector)))
        return projector, None

    def _chat_template(self, own: str | None, of_store: str) -> ChatTemplate:
        """The template of the file, else that of the model's store, else that of its family."""
        names = self._model.special_names()
        if own or of_store.strip() in _NO_TEMPLATE:
            self._remarks += [] if own else [_CONTINUES]
            return ChatTemplate.of(own, *names, self._model.header.tokens)
        try:
            return ChatTemplate(from_go(of_store), *names)
        except (ValueError, SlipstreamError) as error:
            reason = (
                error.title.rstrip(".") if isinstance(error, SlipstreamError) else quoted(str(error), LONGEST_REASON)
            )
            self._remarks.append(f"Ollama's template of this model cannot be used: {reason}. {_CONTINUES}")
            return ChatTemplate.of(None, *names, self._model.header.tokens)

    def _open_prompts(self, blind: SlipstreamError | None) -> PromptBuilder:
        model, template = self._model, self._template
        seen, longest = self._projector.tokens if self._projector else None, self._plan.contexts.longest
        prompts = PromptBuilder(
            template,
            model.tokenize,
            model.opening(),
            n_vocab=model.n_vocab,
            token_bytes=model.token_bytes,
            images=seen,
            blind=blind,
            longest=longest,
            system=self._request.extras.system,
        )
        self._opened.callback(prompts.close)
        tokens, marks = prompts.turn_ends(model.ends)
        self._end_marks = (*marks, *self._request.extras.stop)
        model.ends |= tokens
        return prompts

    def _open_index(self) -> TextIndex | None:
        if not self._request.index:
            return None
        return self._opened.enter_context(closing(open_index(Path(self._request.index), self._plan.header)))

    def _keys(self) -> tuple[str, str]:
        """Identify what a kept cache was computed with, and what else changes the time or the bits of a pass."""
        request, fit, header = self._request, self._plan.fit, self._plan.header
        # the fingerprint covers headers and sizes alone, and files with different weights may share it
        weights = f"{header.fingerprint} {identity(header)}"
        key = f"{weights} {llama_cpp.__version__} {self._target.abilities.n_ctx} {self._options}{self._changed}"
        key += f" {self._projector.fingerprint}" if self._projector else ""
        return key, f"{key} {built()} {dict(fit.shares)} {request.devices.draft} {physical_cores()}"

    def _spill_watch(self) -> SpillWatch | None:
        """Watches a model on GPUs; the least time of a plain pass is kept from load to load, whatever the context."""
        fit = self._plan.fit
        if not (fit.shares and self._memory):
            return None
        key, known_ms = f"{built()} {dict(fit.shares)} ", self._plain_ms
        kept = (self._memory.read(_PLAIN) or b"").decode()
        with suppress(ValueError):
            known_ms = min(known_ms, float(kept.removeprefix(key)))
        self._memory.write(_PLAIN, f"{key}{known_ms}".encode())

        def full() -> bool:
            used = (device for device in survey_here().devices if device.name in fit.shares)
            return any(device.free_bytes < _FULL for device in used)

        need = fit.need
        return SpillWatch(known_ms, self._plain_ms, need.kv / max(1, fit.n_ctx) / max(1, need.weights), full)

    def _drafters(self) -> Drafters:
        request, plan, target = self._request, self._plan, self._target
        parts = Resources(
            target.abilities,
            self._draft,
            plan.heads,
            target,
            Path(request.derived) if request.derived else None,
            text_index=self._index,
            memory=self._memory,
            header=plan.header,
            vocabulary_mapping=self._mapping,
            guard=plan.guard,
        )
        disabled: Callable[[], frozenset[str]] = frozenset
        if request.left_out:
            disabled = partial(known_left_out, Path(request.left_out), plan.header.fingerprint)
        profile = Profile(self._memory, self._machine_key, self._model.tokenize(SAMPLE_TEXT, special=False))
        return Drafters(parts, target, self._plain_ms, profile, disabled)

    def _past_chats(self) -> PastChats | None:
        if not self._index or not self._request.chats:
            return None
        reader, model = ChatReader(Path(self._request.chats)), self._model
        return PastChats(reader, self._index, model.header.fingerprint, prompts=self._prompts, n_vocab=model.n_vocab)

    def _open_second(self) -> Session:
        """Opens a session without drafters on the same weights; see ``Session``."""
        with ExitStack() as own:
            target = self._open_target(own, drafts=False)
            if self._threads:
                target.use_threads(self._threads.count)
            if self._projector:
                target.use_images(self._projector)
            alone = Drafters(Resources(target.abilities), target, self._plain_ms, Profile(None, ""))
            plain = ChatModel(target, self._model, self._prompts, PlainClock(), end_marks=self._end_marks)
            return Session(plain, alone, KvCacheStore(target, self._key, 0), opened=own.pop_all())


def _learner(fingerprint: str, changed: str) -> str:
    return hashlib.sha256(f"{fingerprint} {changed}".encode()).hexdigest() if changed else fingerprint


def _recommended(header: Header) -> tuple[dict[str, float], str]:
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
