"""Opens a model and its draft model, measures them, and makes a session of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import llama_cpp

from slipstream.app.chats.reading import ChatReader
from slipstream.app.drafters.left_out import known_left_out
from slipstream.app.engine.attention import writes_scores
from slipstream.app.engine.fitting import devices_here, fitted, options_for
from slipstream.app.engine.flight_log import FlightLog
from slipstream.app.engine.keeper import Keeper
from slipstream.app.engine.measuring import measure_plain
from slipstream.app.engine.offers import check_drafter, offers
from slipstream.app.engine.past_chats import PastChats
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.protocol import Loaded
from slipstream.app.engine.requests import Load
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock
from slipstream.app.engine.threads import Threads
from slipstream.drafters.memory import Memory
from slipstream.drafters.parts import Parts
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.text_index.vocabulary import open_index
from slipstream.drafters.translation import Translation, shared_controls
from slipstream.models.companions import companions
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf import Header, read_header
from slipstream.models.probe import probe_once
from slipstream.models.probe_record import ProbeRecord
from slipstream.models.runtime.devices import Device
from slipstream.models.runtime.library import built, device, physical_cores
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.runtime.model import LlamaModel
from slipstream.models.runtime.options import ContextOptions
from slipstream.models.template import ChatTemplate
from slipstream.models.vocabulary import check_vocabulary, same_vocabulary

_WEIGHT: Final = 4
"""Plain steps that the measurement at load counts as: enough to outweigh one that was disturbed."""
_MEASURING: Final = 0.9
"""Share of a load from which the machine is measured: the files are read."""
_LEAST_CONTEXT: Final = 512
"""Tokens; halving it further frees next to nothing, and leaves no room for a chat."""
_SMALL: Final = 1 << 30
"""Bytes of weights up to which threads are measured; in larger models they hardly wait for each other."""


def load(request: Load, on_progress: Callable[[float | None], None]) -> tuple[Session, Loaded]:
    """Loads what is asked.

    Args:
        request: Which model, which draft model.
        on_progress: Hears 0 to 1; None while files are tried before their first use.

    Returns:
        The session and what to tell about it.

    Raises:
        SlipstreamError: If a file is no model that can chat, or there is no memory.
    """
    check_drafter(request.drafter)
    if request.n_ctx < 0:
        raise UsageError(f"context is {request.n_ctx}; it must be 0 (the model's own) or more.")
    path = Path(request.model)
    header = read_header(path)
    check_vocabulary(header)
    small_header = read_header(Path(request.draft_model)) if request.draft_model else None
    if small_header:  # before the large file is read
        check_vocabulary(small_header)
    heads = companions(header, map(Path, request.heads))
    if request.probed:
        files = [header.path, *([small_header.path] if small_header else []), *filter(None, [heads.get("eagle3")])]
        probe_once(files, ProbeRecord(Path(request.probed), built()), lambda: on_progress(None))
    devices = devices_here()
    scores = _writes_scores(request, devices)
    fit = fitted(request, header, small_header, heads.values(), lambda: devices, scores)
    fit = replace(fit, n_ctx=max(min(_LEAST_CONTEXT, fit.n_ctx), fit.n_ctx >> request.halved))
    with ExitStack() as opened:
        model = _open_model(path, fit.gpu_layers, lambda share: on_progress(0.8 * share), opened)
        options = options_for(request, fit.n_ctx, fit.kv_type, borrow=fit.gpu_layers != 0, scores=scores)
        target = opened.enter_context(closing(LlamaTarget(model, options)))
        layers = (fit.gpu_layers, model.n_layer + 1)
        draft, translation = None, None
        if request.draft_model:
            small_layers = request.draft_gpu_layers if fit.gpu_layers else max(0, request.draft_gpu_layers)
            small = _open_model(
                Path(request.draft_model),
                small_layers,
                lambda share: on_progress(0.8 + 0.1 * share),
                opened,
            )
            n_ctx = min(target.abilities.n_ctx, small.n_ctx_train)
            on_cpu = scores and not small_layers
            small_options = ContextOptions(
                n_ctx, max_leaves=4, scores=on_cpu, threads=request.threads, borrow=options.borrow
            )
            draft = opened.enter_context(closing(LlamaTarget(small, small_options)))
            if not same_vocabulary(header, small.header):
                translation = Translation(model, small, shared_controls(header, small.header))
        threads = None
        if not request.threads and header.weight_bytes < _SMALL and not model.recurrent:
            threads = Threads(target, [draft] if draft else [], max(1, physical_cores() - request.spare_cores))
        on_progress(_MEASURING)
        milliseconds = measure_plain(target)
        plain = PlainClock()
        for _ in range(_WEIGHT):
            plain.hear(milliseconds)
        prompts = PromptBuilder(_template(model), model.tokenize, model.opening())
        derived = Path(request.derived) if request.derived else None
        index = _open_index(Path(request.index), header, opened) if request.index else None
        memory = Memory(derived, header.fingerprint) if derived else None
        parts = Parts(
            target.abilities,
            draft,
            heads,
            target,
            derived,
            text_index=index,
            memory=memory,
            header=header,
            translation=translation,
        )
        key = f"{header.fingerprint} {llama_cpp.__version__} {target.abilities.n_ctx} {options}"
        log = FlightLog(memory, f"{key} {built()} {device(0, *layers)} {physical_cores()}")
        keeper = Keeper(target, key, request.states_limit, Path(request.states) if request.states else None)
        promise = log.promise(target, milliseconds)
        past = None
        if index and request.chats:
            past = PastChats(
                ChatReader(Path(request.chats)), index, header.fingerprint, prompts, model.tokenize, model.n_vocab
            )
        left_out: Callable[[], frozenset[str]] = frozenset
        if request.left_out:
            left_out = partial(known_left_out, Path(request.left_out), header.fingerprint)
        session = Session(target, model, prompts, parts, plain, threads, keeper, opened.pop_all(), log, past, left_out)
        opened.callback(session.close)
        # one that cannot serve is an error before the first token
        session.drafter(request.drafter, lambda share: on_progress(_MEASURING + (1 - _MEASURING) * share))
        opened.pop_all()
    on_progress(1.0)
    return session, Loaded(
        name=header.name,
        architecture=header.architecture,
        n_ctx=target.abilities.n_ctx,
        fingerprint=header.fingerprint,
        device=device(threads.count if threads else request.threads or physical_cores(), *layers),
        promise=promise,
        drafters=offers(parts),
        plain_tok_per_s=1e3 / milliseconds,
    )


def _writes_scores(request: Load, devices: Sequence[Device]) -> bool:
    """Whether attention does so where the model runs on the processor; the same text is kept by the other kind."""
    on_gpu = request.gpu_layers and any(device.kind in ("gpu", "igpu") for device in devices)
    if request.same_text or on_gpu or not request.measured_with:
        return False
    return writes_scores(Path(request.measured_with), Path(request.derived) if request.derived else None)


def _open_model(path: Path, gpu_layers: int, on_progress: Callable[[float], None], opened: ExitStack) -> LlamaModel:
    return opened.enter_context(closing(LlamaModel(path, on_progress, gpu_layers)))


def _open_index(root: Path, header: Header, opened: ExitStack) -> TextIndex | None:
    """The index of the model's vocabulary; None where it is damaged, which the command that indexes says in words."""
    try:
        return opened.enter_context(closing(open_index(root, header)))
    except SlipstreamError:
        return None


def _template(model: LlamaModel) -> ChatTemplate:
    source = model.header.chat_template
    return ChatTemplate(source, *model.special_names()) if source else ChatTemplate.default()
