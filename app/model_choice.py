"""Which files a model's name stands for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slipstream.app.drafters.indexed import is_on
from slipstream.app.engine.requests import AUTO, Load
from slipstream.app.paths import Paths, write_private

BUNDLED: Final = "bundled"
BUNDLED_TARGET: Final = "slipstream-mini-q8_0.gguf"
TUNED: Final = "bundled-tuned"
TUNED_TARGET: Final = "slipstream-mini-tuned-q8_0.gguf"
BUNDLED_DRAFT: Final = "slipstream-mini-draft-q8_0.gguf"
PROBED: Final = "probed.json"
"""File beside the derived ones that remembers which model files were tried, see ``Load.probed``."""
_USUAL: Final = "usual-model"
"""File in the folder of models that names the one its owner chose last."""


def choose(
    paths: Paths,
    model: str | None = BUNDLED,
    draft_model: str | None = None,
    drafter: str | None = None,
    n_ctx: int = 0,
) -> Load:
    """Makes the request that loads a model.

    Args:
        paths: Where things are kept.
        model: ``bundled``, ``bundled-tuned`` (its copy that was tuned for SPACE), a path to a GGUF, or the name of an
            installed model, which brings the best drafter for it that is here; None for the one that was chosen last.
        draft_model: A draft model's GGUF or name; the bundled model brings its own.
        drafter: Who drafts; None for the autopilot.
        n_ctx: Context in tokens; 0 for the model's own.

    Raises:
        UsageError: If the name stands for nothing, or for several models.
        ModelFileError: If the installed model is broken, or no model to chat with.
    """
    model = model or usual(paths)
    if model in (BUNDLED, TUNED):
        target = paths.bundled / (BUNDLED_TARGET if model == BUNDLED else TUNED_TARGET)
        return load_of(paths, target, draft_model or str(paths.bundled / BUNDLED_DRAFT), drafter, n_ctx, same_text=True)
    if is_path(model) and (draft_model is None or is_path(draft_model)):
        return load_of(paths, Path(model).expanduser(), draft_model, drafter, n_ctx)
    from slipstream.app.models.named import named  # reading the list of models loads much more than the chat needs

    return named(paths, model, draft_model, drafter, n_ctx)


def load_of(
    paths: Paths,
    target: Path,
    draft_model: str | None,
    drafter: str | None,
    n_ctx: int,
    *,
    same_text: bool = False,
    heads: Sequence[Path] = (),
) -> Load:
    """Makes the request that loads a file.

    Args:
        paths: Where things are kept.
        target: The model's file.
        draft_model: The draft model's file.
        drafter: Who drafts; None for the autopilot.
        n_ctx: Context in tokens; 0 for the model's own.
        same_text: See ``Load.same_text``.
        heads: Further files of heads.
    """
    return Load(
        model=str(target),
        draft_model=draft_model,
        heads=[str(path) for path in dict.fromkeys([*head_files(paths), *heads])],
        probed=str(paths.derived / PROBED),
        measured_with=str(paths.bundled / BUNDLED_TARGET),
        derived=str(paths.derived),
        index=str(paths.index) if is_on(paths.index) else None,
        chats=str(paths.chats),
        left_out=str(paths.drafters),
        drafter=drafter or AUTO,
        n_ctx=n_ctx,
        same_text=same_text,
    )


def head_files(paths: Paths) -> list[Path]:
    """All files that may be trained heads."""
    return [path for folder in (paths.bundled, paths.heads) for path in sorted(folder.glob("*.gguf"))]


def usual(paths: Paths) -> str:
    """The model that is taken where nobody names one: what its owner chose last in the chat, at first the bundled."""
    try:
        return (paths.models / _USUAL).read_text("utf-8").strip() or BUNDLED
    except (OSError, UnicodeDecodeError):
        return BUNDLED


def make_usual(paths: Paths, model: str) -> None:
    """Takes a model from now on where nobody names one.

    Raises:
        SlipstreamError: If that cannot be kept.
    """
    write_private(paths.models / _USUAL, f"{model}\n")


def is_path(name: str) -> bool:
    """Whether a name is meant as a path: it is one, or it looks like one and like no repository."""
    shaped = name.endswith(".gguf") or name.startswith((".", "~", os.sep))
    return shaped or Path(name).is_file() or (os.sep in name and Path(name).exists())


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
