"""Resolves a model's name to the request that loads it."""

from pathlib import Path

from slipstream.app.library.load_request import BUNDLED, BUNDLED_DRAFT, SHIPPED, is_path, load_of, usual
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

    ``model`` is ``bundled``, ``bundled-tuned`` (its copy tuned for SPACE), a path to a GGUF, or the name of an
    installed model, which gets its best installed drafter; None for the default. The bundled model brings its own draft
    model. Without a drafter, it is the autopilot; a context of 0 is the model's own.
    """
    model = model or usual(paths)
    if model in SHIPPED:
        draft = draft_model or str(paths.bundled / BUNDLED_DRAFT)
        return load_of(paths, paths.bundled / SHIPPED[model], draft, drafter, n_ctx)
    if is_path(model) and (draft_model is None or is_path(draft_model)):
        return load_of(paths, Path(model).expanduser(), draft_model, drafter, n_ctx)
    from slipstream.app.library.pairs import named  # the list of models imports more than the chat needs

    return named(paths, model, draft_model, drafter, n_ctx)
