"""The drafters of an installed model, and the request that loads it with the best one."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from slipstream.app.library.learned_gains import gains_of
from slipstream.app.library.load_request import (
    BUNDLED,
    BUNDLED_DRAFT,
    SHIPPED,
    head_files,
    is_path,
    load_of,
    used_files,
)
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import Load, ModelExtras
from slipstream.app.settings.file import load
from slipstream.app.settings.values import folders_of
from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.heads.matching_heads import HEAD_METHODS, matching_heads
from slipstream.models.library.catalog import Catalog, catalog
from slipstream.models.library.names import find, names_of
from slipstream.models.library.pairing import DRAFT, PairOffer, Surroundings, pairs_for
from slipstream.models.library.records import InstalledModel
from slipstream.models.library.store import ModelStore
from slipstream.models.llama.devices import Device, devices, memory
from slipstream.models.memory.fit import FitOptions, fit

_PARAMETERS: Final = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")  # Ollama's names of sampling values
_RENAMED: Final = {"repeat_penalty": "repetition_penalty"}
_COUNTS: Final = ("num_ctx", "num_predict", "seed")
_LARGEST: Final = 1 << 31
_AMPLE: Final = 3  # if free memory is this many times the weights, any usual context fits


def offers_for(
    model: InstalledModel,
    header: Header,
    installed: Sequence[InstalledModel],
    catalog: Catalog,
    paths: Paths,
    reasons: bool = True,
) -> list[PairOffer]:
    """Every drafter for an installed model, best first; without ``reasons``, none of another vocabulary."""
    file = model.name.partition(":")[0]
    around = Surroundings(
        models=installed,
        heads=matching_heads(header, head_files(paths)),
        pairs=catalog.of(names_of(header, model.repo, file), model.sha256),
        gains=gains_of(paths, header).known,
        reasons=reasons,
    )
    return pairs_for(header, around)


def best_pair(offers: Sequence[PairOffer]) -> PairOffer | None:
    """The best drafter whose file must be named, unlike the model's own layers or heads trained for it; or None."""
    return next((offer for offer in offers if offer.sound and offer.drafter), None)


def that_fits(header: Header, pair: PairOffer | None, devices: Callable[[], Sequence[Device]]) -> PairOffer | None:
    """Returns the drafter, or None if the model fits only without it; ``devices`` is slow, and seldom called."""
    if not pair or pair.method != DRAFT or not pair.path:
        return pair
    if _AMPLE * (header.weight_bytes + pair.size) < memory()[1]:
        return pair
    return pair if fit(header, devices(), FitOptions(draft=read_header(pair.path))).verdict != "too big" else None


def checked_header(model: InstalledModel) -> Header:
    if model.problem:
        raise ModelFileError(model.problem, model.hint)
    if model.role != "chat":
        what = "heads that only draft for another model" if model.role == "drafter" else f"a {model.architecture} file"
        raise ModelFileError(f"{model.name} is {what}, not a model to chat with.", "Choose its target.")
    return read_header(model.path)


def load_with(
    paths: Paths,
    model: InstalledModel,
    pair: PairOffer | None,
    draft_model: str | None = None,
    drafter: str | None = None,
    n_ctx: int = 0,
) -> Load:
    heads = [pair.path] if pair and pair.path and pair.method != DRAFT else []
    if draft_model is None and pair and pair.method == DRAFT and pair.path:
        draft_model = str(pair.path)
    request = load_of(paths, model.path, draft_model, drafter, n_ctx, heads=heads)
    return replace(request, extras=_extras(model))


def _extras(model: InstalledModel) -> ModelExtras:
    extras, given = model.extras, model.extras.parameters
    numbers = {_RENAMED.get(name, name): given.get(name) for name in _PARAMETERS}
    stop = given.get("stop")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    counts = {name: value for name in _COUNTS if type(value := given.get(name)) is int and 0 <= value < _LARGEST}
    return ModelExtras(
        adapters=[str(path) for path in extras.adapters],
        system=extras.system,
        template=extras.template,
        stop=[text for text in stops if isinstance(text, str) and text],
        sampling={field: value for field, value in numbers.items() if isinstance(value, int | float)},
        n_ctx=min(counts.get("num_ctx", 0), model.context or _LARGEST),
        max_tokens=counts.get("num_predict", 0),
        seed=counts.get("seed"),
    )


def store_of(paths: Paths) -> ModelStore:
    bundled = {name: paths.bundled / file for name, file in {**SHIPPED, f"{BUNDLED}-draft": BUNDLED_DRAFT}.items()}
    return ModelStore(paths.models, bundled, os.environ, partial(_own_places, paths))


def _own_places(paths: Paths) -> list[Path]:
    return [*folders_of(load(paths.settings).settings.model.folders), *used_files(paths)]


def named(paths: Paths, model: str, draft_model: str | None, drafter: str | None, n_ctx: int) -> Load:
    """The request that loads an installed model with its best installed drafter."""
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
        return load_of(paths, target.path, draft_model, drafter, n_ctx)
    header = checked_header(target)
    pair = None
    needing = (DRAFT, "auto", *HEAD_METHODS)  # drafters that may need a file, also as a part of a combination
    if draft_model is None and (drafter is None or any(name in drafter for name in needing)):
        pair = best_pair(offers_for(target, header, installed, catalog(paths.catalog), paths, reasons=False))
        pair = that_fits(header, pair, devices)
    return load_with(paths, target, pair, draft_model, drafter, n_ctx=n_ctx)
