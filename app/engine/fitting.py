"""Chooses how a model is opened so that it fits, before it is loaded; refuses one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from slipstream.app.engine.requests import Load
from slipstream.models.errors import SlipstreamError
from slipstream.models.fit import Fit, fit
from slipstream.models.fit_room import room_of
from slipstream.models.gguf import Header
from slipstream.models.quoting import shown_path
from slipstream.models.runtime.devices import Device, survey_here
from slipstream.models.runtime.dry_run import DryRun
from slipstream.models.runtime.options import ContextOptions, KvType

_TIGHT: Final = (0.7, 1.3)
"""Shares of what may be taken between which llama.cpp itself is asked: a few milliseconds for the last per cent."""


def devices_here() -> Sequence[Device]:
    """Lists what this process can run on."""
    return survey_here().devices


def fitted(
    request: Load,
    header: Header,
    draft: Header | None,
    heads: Iterable[Path] = (),
    devices: Callable[[], Sequence[Device]] = devices_here,
    scores: bool = False,
) -> Fit:
    """Chooses context, KV type and layers on the GPU, where the owner left them open.

    Args:
        request: What is to be loaded.
        header: Of the model.
        draft: Of the draft model.
        heads: Files of trained heads that draft for it.
        devices: Lists what there is.
        scores: See ``ContextOptions``; where it runs on the processor.

    Raises:
        SlipstreamError: If the model does not fit; it says what would.
    """
    found = [device for device in devices() if request.gpu_layers or device.kind == "cpu"]
    choose = partial(
        fit,
        header,
        found,
        want_ctx=request.n_ctx or None,
        kv_type="q8_0" if request.same_text else None,
        heads=sum(path.stat().st_size for path in heads),
        scores=scores,
    )
    chosen = choose(draft=draft)
    if _TIGHT[0] < room_of(found).used(chosen.need) < _TIGHT[1]:
        with closing(DryRun(header.path)) as run:
            chosen = choose(
                draft=draft,
                measure=lambda n_ctx, kv, scores: run.graph_bytes(options_for(request, n_ctx, kv, scores=scores)),
            )
    if chosen.verdict == "too big":
        alone = draft and choose().verdict != "too big"
        hint = f"{chosen.why} Without its draft model it would fit." if alone else chosen.why
        asked = f" with a context of {request.n_ctx:,} tokens" if request.n_ctx else ""
        raise SlipstreamError(f"{shown_path(header.path)}{asked} does not fit this machine.", hint)
    return chosen if request.gpu_layers < 0 else replace(chosen, gpu_layers=request.gpu_layers)


def options_for(request: Load, n_ctx: int, kv: KvType, borrow: bool = True, scores: bool = False) -> ContextOptions:
    """How the context is opened: what was chosen, and what the request says.

    Args:
        request: What is to be loaded.
        n_ctx: Tokens that it holds.
        kv: Type of the KV cache; llama.cpp packs one with flash attention only.
        borrow: See ``ContextOptions``.
        scores: See ``ContextOptions``.
    """
    return ContextOptions(
        n_ctx=n_ctx,
        kv=kv,
        flash=True if kv == "q8_0" else None,
        scores=scores,
        same_text=request.same_text,
        threads=request.threads,
        borrow=borrow,
    )
