"""What a model's name on the command line loads."""

from __future__ import annotations

import os
from pathlib import Path

from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import BUNDLED, BUNDLED_DRAFT, BUNDLED_TARGET, TUNED, TUNED_TARGET, is_path, load_of
from slipstream.app.models.pairs import best_pair, checked_header, load_with, offers_for, that_fits
from slipstream.app.paths import Paths
from slipstream.models.catalog import catalog
from slipstream.models.pairing import DRAFT
from slipstream.models.runtime.devices import devices
from slipstream.models.store import ModelStore
from slipstream.models.store_names import find


def store_of(paths: Paths) -> ModelStore:
    """The models of this machine."""
    bundled = {BUNDLED: BUNDLED_TARGET, TUNED: TUNED_TARGET, f"{BUNDLED}-draft": BUNDLED_DRAFT}
    return ModelStore(paths.models, {name: paths.bundled / file for name, file in bundled.items()}, os.environ)


def named(paths: Paths, model: str, draft_model: str | None, drafter: str | None, n_ctx: int) -> Load:
    """The request that loads an installed model, with the best drafter for it that is here.

    Args:
        paths: Where things are kept.
        model: Its name, or a path.
        draft_model: A draft model's name or path; None for the best drafter.
        drafter: Who drafts; None for what fits.
        n_ctx: Context in tokens; 0 for the model's own.

    Raises:
        UsageError: If a name stands for nothing, or for several models.
        ModelFileError: If a model is broken, or none to chat with.
    """
    installed = store_of(paths).installed()
    if draft_model is not None and not is_path(draft_model):
        drafting = find(draft_model, installed)
        checked_header(drafting)
        draft_model = str(drafting.path)
    if is_path(model):
        return load_of(paths, Path(model).expanduser(), draft_model, drafter, n_ctx)
    target = find(model, installed)
    if target.origin == "bundled":
        small = paths.bundled / BUNDLED_DRAFT
        draft_model = draft_model or (str(small) if target.path != small else None)
        return load_of(paths, target.path, draft_model, drafter, n_ctx, same_text=True)
    header = checked_header(target)
    pair = None
    if draft_model is None and _may_need_a_file(drafter):
        pair = best_pair(offers_for(target, header, installed, catalog(paths.catalog), paths, reasons=False))
        pair = that_fits(header, pair, devices)
    return load_with(paths, target.path, pair, draft_model, drafter, n_ctx)


def _may_need_a_file(drafter: str | None) -> bool:
    """Whether a drafter that a person named, or one of several joined, may need a file beside the model."""
    return drafter is None or any(name in drafter for name in (DRAFT, "auto", "eagle3"))
