"""The drafters of an installed model, and the request that loads it with the best one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import head_files, load_of
from slipstream.app.models.history import ModelHistory
from slipstream.app.models.learnt import learnt_gains
from slipstream.app.paths import Paths
from slipstream.models.catalog import Catalog
from slipstream.models.companions import companions
from slipstream.models.errors import ModelFileError
from slipstream.models.fit import fit
from slipstream.models.gguf import Header, read_header
from slipstream.models.pairing import DRAFT, PairOffer, Surroundings, names_of, pairs_for
from slipstream.models.runtime.devices import Device
from slipstream.models.runtime.machine import memory
from slipstream.models.store_types import Installed

_AMPLE: Final = 3
"""Where so many times the weights are free, the context fits as well."""


def offers_for(
    model: Installed,
    header: Header,
    installed: Sequence[Installed],
    catalog: Catalog,
    paths: Paths,
    reasons: bool = True,
) -> list[PairOffer]:
    """Every drafter for an installed model, best first.

    Args:
        model: The model.
        header: Its header.
        installed: All models of this machine.
        catalog: The catalogue.
        paths: Where heads and chats are kept.
        reasons: Whether to find out where vocabularies differ; without, such models are left out.
    """
    file = model.name.partition(":")[0]
    around = Surroundings(
        models=installed,
        heads=companions(header, head_files(paths)),
        pairs=catalog.of(names_of(header, model.repo, file), model.sha256),
        gains=learnt_gains(paths.derived, header.fingerprint) | ModelHistory(paths.chats).gains(header.fingerprint),
        reasons=reasons,
    )
    return pairs_for(header, around)


def best_pair(offers: Sequence[PairOffer]) -> PairOffer | None:
    """The best drafter that has to be named to come along, where a person did not choose; None if there is none.

    Layers inside the model and heads that were trained for it come along by themselves.
    """
    return next((offer for offer in offers if offer.sound and offer.drafter), None)


def that_fits(header: Header, pair: PairOffer | None, devices: Callable[[], Sequence[Device]]) -> PairOffer | None:
    """The drafter, or None where the model fits this machine only without it.

    Args:
        header: Of the model.
        pair: Its drafter, if there is one.
        devices: What this machine has; it takes long to ask, and is not asked where memory is ample.
    """
    if not pair or pair.method != DRAFT or not pair.path:
        return pair
    if _AMPLE * (header.weight_bytes + pair.size) < memory()[1]:
        return pair
    return pair if fit(header, devices(), draft=read_header(pair.path)).verdict != "too big" else None


def checked_header(model: Installed) -> Header:
    """The header of a model that can be chatted with.

    Raises:
        ModelFileError: If it is broken, or no model to chat with.
    """
    if model.problem:
        raise ModelFileError(model.problem, model.hint)
    if model.role != "chat":
        what = "heads that only draft for another model" if model.role == "drafter" else f"a {model.architecture} file"
        raise ModelFileError(f"{model.name} is {what}, so nobody can chat with it.", "Choose its target.")
    return read_header(model.path)


def load_with(
    paths: Paths,
    model: Path,
    pair: PairOffer | None,
    draft_model: str | None = None,
    drafter: str | None = None,
    n_ctx: int = 0,
    *,
    same_text: bool = False,
) -> Load:
    """The request that loads a model with a drafter.

    Args:
        paths: Where things are kept.
        model: The target's file.
        pair: The drafter whose file comes along, if any.
        draft_model: A draft model's file that a person named, in place of the pair's.
        drafter: Who drafts; None for the autopilot, which weighs all that the model is loaded with.
        n_ctx: Context in tokens; 0 for the model's own.
        same_text: See ``Load.same_text``.
    """
    heads = [pair.path] if pair and pair.path and pair.method != DRAFT else []
    if draft_model is None and pair and pair.method == DRAFT and pair.path:
        draft_model = str(pair.path)
    return load_of(paths, model, draft_model, drafter, n_ctx, same_text=same_text, heads=heads)
