"""Resolves a model's name to the request that loads it."""

from __future__ import annotations

from pathlib import Path

from slipstream.app.library.load_request import (
    BUNDLED,
    BUNDLED_DRAFT,
    BUNDLED_TARGET,
    TUNED,
    TUNED_TARGET,
    is_path,
    load_of,
    usual,
)
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load


def choose(
    paths: Paths,
    model: str | None = BUNDLED,
    draft_model: str | None = None,
    drafter: str | None = None,
    n_ctx: int = 0,
) -> Load:
    """The request that loads a model.

    Args:
        model: ``bundled``, ``bundled-tuned`` (its copy tuned for SPACE), a path to a GGUF, or the name of an installed
            model, which gets its best installed drafter; None for the default.
        draft_model: A draft model's GGUF or name; the bundled model brings its own.
        drafter: The drafter's name; None for the autopilot.
        n_ctx: Context in tokens; 0 for the model's own.
    """
    model = model or usual(paths)
    if model in (BUNDLED, TUNED):
        target = paths.bundled / (BUNDLED_TARGET if model == BUNDLED else TUNED_TARGET)
        draft = draft_model or str(paths.bundled / BUNDLED_DRAFT)
        return load_of(paths, target, draft, drafter, n_ctx)
    if is_path(model) and (draft_model is None or is_path(draft_model)):
        return load_of(paths, Path(model).expanduser(), draft_model, drafter, n_ctx)
    from slipstream.app.library.pairs import named  # the list of models imports more than the chat needs

    return named(paths, model, draft_model, drafter, n_ctx)
