"""Opens a model and its draft model, measures them, and makes a session of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import llama_cpp

from slipstream.app.engine.promise import measure_plain, measure_promise
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.engine.protocol import DrafterOffer, Load, Loaded
from slipstream.app.engine.session import Session
from slipstream.app.engine.stats import PlainClock
from slipstream.drafters import registry
from slipstream.models.errors import UsageError
from slipstream.models.gguf import read_header
from slipstream.models.runtime.library import Log, device
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.runtime.model import LlamaModel
from slipstream.models.runtime.options import ContextOptions
from slipstream.models.template import ChatTemplate
from slipstream.models.vocabulary import check_same_vocabulary


def load(request: Load, log: Log, on_progress: Callable[[float], None]) -> tuple[Session, Loaded]:
    """Loads what is asked.

    Args:
        request: Which model, which draft model.
        log: llama.cpp's log.
        on_progress: Hears 0 to 1.

    Returns:
        The session and what to tell about it.

    Raises:
        SlipstreamError: If a file is no model, the two do not fit each other, or there is no memory.
    """
    registry.check_name(request.drafter)
    if request.n_ctx < 0:
        raise UsageError(f"context is {request.n_ctx}; it must be 0 (the model's own) or more.")
    header = read_header(Path(request.model))
    if request.draft_model:  # before the large file is read
        check_same_vocabulary(header, read_header(Path(request.draft_model)))
    model = LlamaModel(Path(request.model), log, lambda share: on_progress(0.8 * share), request.gpu_layers)
    n_ctx = request.n_ctx or min(model.header.n_ctx_train, 8192)
    options = ContextOptions(
        n_ctx=n_ctx,
        kv="q8_0" if request.same_text else "f16",
        flash=True if request.same_text else None,
        same_text=request.same_text,
    )
    target = LlamaTarget(model, options)
    draft = None
    if request.draft_model:
        small = LlamaModel(
            Path(request.draft_model), log, lambda share: on_progress(0.8 + 0.1 * share), request.gpu_layers
        )
        draft_ctx = min(n_ctx, small.header.n_ctx_train)
        draft = LlamaTarget(small, ContextOptions(n_ctx=draft_ctx, max_rows=32, max_leaves=1))
    plain = PlainClock()
    measure_plain(target, plain)
    on_progress(0.95)
    milliseconds = plain.milliseconds or 0.0
    promise = measure_promise(target, milliseconds)
    bos, eos = model.special_names()
    source = header.chat_template
    template = ChatTemplate(source, bos, eos) if source else ChatTemplate.default()
    parts = registry.Parts(target.abilities, draft)
    key = f"{header.fingerprint} {llama_cpp.__version__} {options}"
    session = Session(target, model, PromptBuilder(template, model.tokenize, model.opening()), parts, plain, key)
    session.drafter(request.drafter)
    reasons = {name: registry.why_not(name, parts) for name in registry.METHODS}
    on_progress(1.0)
    return session, Loaded(
        name=header.name,
        architecture=header.architecture,
        n_ctx=n_ctx,
        fingerprint=header.fingerprint,
        device=device(),
        promise=promise,
        drafters=[DrafterOffer(name, not reason, reason) for name, reason in reasons.items()],
        plain_tok_per_s=1e3 / milliseconds if milliseconds else 0.0,
    )
