"""Which files a model's name stands for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from slipstream.app.drafters.indexed import is_on
from slipstream.app.engine.requests import Load
from slipstream.app.paths import Paths
from slipstream.models.errors import UsageError

BUNDLED: Final = "bundled"
BUNDLED_TARGET: Final = "slipstream-mini-q8_0.gguf"
TUNED: Final = "bundled-tuned"
TUNED_TARGET: Final = "slipstream-mini-tuned-q8_0.gguf"
BUNDLED_DRAFT: Final = "slipstream-mini-draft-q8_0.gguf"


def choose(
    paths: Paths, model: str = BUNDLED, draft_model: str | None = None, drafter: str | None = None, n_ctx: int = 0
) -> Load:
    """Makes the request that loads a model.

    Args:
        paths: Where things are kept.
        model: ``bundled``, ``bundled-tuned`` (its copy that was tuned for SPACE), or a path to a GGUF.
        draft_model: A path to a draft model's GGUF; the bundled model brings its own.
        drafter: Who drafts; None for ``draft`` where there is a draft model, else ``lookup``.
        n_ctx: Context in tokens; 0 for the model's own.

    Raises:
        UsageError: If the name stands for nothing.
    """
    bundled = model in (BUNDLED, TUNED)
    if bundled:
        target = paths.bundled / (BUNDLED_TARGET if model == BUNDLED else TUNED_TARGET)
        draft_model = draft_model or str(paths.bundled / BUNDLED_DRAFT)
    elif os.sep in model or model.endswith(".gguf") or Path(model).exists():
        target = Path(model).expanduser()
    else:
        raise UsageError(
            f"there is no model named {model!r}.", f"Known: {BUNDLED}, {TUNED}; or give the path of a .gguf file."
        )
    return Load(
        model=str(target),
        draft_model=draft_model,
        heads=[str(path) for folder in (paths.bundled, paths.heads) for path in sorted(folder.glob("*.gguf"))],
        derived=str(paths.derived),
        index=str(paths.index) if is_on(paths.index) else None,
        chats=str(paths.chats),
        drafter=drafter or ("draft" if draft_model else "lookup"),
        n_ctx=n_ctx,
        same_text=bundled,
    )


def check_files(load: Load, shipped: Path | None = None) -> None:
    """Checks the headers of the files, without loading them.

    Args:
        load: Names the files.
        shipped: Folder of the models that ship with slipstream, which need no check; None to check them, too.

    Raises:
        SlipstreamError: If one is no model, or cannot tokenize.
    """
    files = [Path(name) for name in (load.model, load.draft_model) if name]
    for file in files:
        if file.parent != shipped:
            from slipstream.models.gguf import read_header  # these two load much more than the chat needs
            from slipstream.models.vocabulary import check_vocabulary

            check_vocabulary(read_header(file))
