"""Quantizations and pairs, each rated for this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slipstream.models.hub.types import Quant
from slipstream.models.library.catalog import CatalogFile, CatalogPair, is_model
from slipstream.models.library.pairing import DRAFT, unserved
from slipstream.models.library.records import Installed
from slipstream.models.llama.devices import Device
from slipstream.models.memory.fit import Fit, estimate

CONTEXTS: Final = (4096, 8192, 32768)  # contexts, in tokens, that the memory of a catalogue's pair is shown for
_VERDICTS: Final = ("gpu", "split", "memory", "too big")
_USUAL: Final = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "UD-Q4_K_M", "IQ4_XS", "Q4_0", "MXFP4", "MXFP4_MOE")
"""The first of them is what a model is usually run with where memory is slow; llama.cpp's default too."""
_FULL: Final = frozenset({"F32", "F16", "BF16"})
_QUICK: Final = 6_000_000_000
"""Bytes of weights up to which a processor with two channels of memory still writes as fast as people read."""
_EVIDENCE: Final = ("documentation", "catalogue", "reported", "suggested")


@dataclass(frozen=True, slots=True)
class QuantOffer:
    """A quantization in a repository."""

    quant: Quant  # the quantization on the hub
    fit: Fit  # how it would run here
    best: bool  # whether it is recommended for this machine
    installed: str  # its name here if it is installed, else empty


@dataclass(frozen=True, slots=True)
class CatalogOffer:
    """A pair of the catalogue, rated for this machine."""

    pair: CatalogPair
    fit: Fit | None  # how the target and its drafter would run here; None if the size is unknown
    memory: dict[int, int]  # bytes that both need at 4k, 8k and 32k tokens of context; empty if the size is unknown
    installed: str  # the target's name here if it is installed, else empty


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a model."""

    model: Installed
    frees: int  # bytes freed on the disk; a link holds none
    chats: tuple[str, ...]  # titles of the chats with its replies, newest first


def quant_offers(
    quants: Sequence[Quant], params: int, context: int, devices: Sequence[Device], installed: Sequence[Installed]
) -> list[QuantOffer]:
    """Rates the quantizations of a repository, and marks the recommended one.

    Args:
        params: Number of the model's parameters; 0 if unknown.
        context: Context that it was trained with, in tokens; 0 if unknown.
    """
    offers = [
        QuantOffer(quant, estimate(quant.size, params, devices, context or None), False, _here(quant, installed))
        for quant in quants
    ]
    best = _best([offer for offer in offers if not offer.quant.drafts])
    return [replace(offer, best=offer is best) for offer in offers]


def catalog_offers(
    pairs: Iterable[CatalogPair], devices: Sequence[Device], installed: Sequence[Installed]
) -> list[CatalogOffer]:
    """Rates the pairs whose target can be fetched, best for this machine first."""
    offers = []
    for pair in pairs:
        if not pair.target.repo:
            continue
        size, params, drafter = pair.target.about, pair.target.params, _drafter_size(pair)
        fits = {n: estimate(size, params, devices, None, n, drafter) for n in CONTEXTS} if size else {}
        fit = estimate(size, params, devices, draft_size=drafter) if size else None
        here = next((model.name for model in installed if _is_target(pair.target, model)), "")
        offers.append(CatalogOffer(pair, fit, {n_ctx: each.need.total for n_ctx, each in fits.items()}, here))
    return sorted(offers, key=_rank)


def _drafter_size(pair: CatalogPair) -> int:
    """Bytes of a pair's drafter; the name of heads states the target's parameters, so theirs are not estimated."""
    if pair.drafter is None:
        return 0
    return pair.drafter.about if pair.method == DRAFT else pair.drafter.size


def _rank(offer: CatalogOffer) -> tuple[bool, bool, int, bool, bool, int, int]:
    """Sort key: what fits, the user's own entries, the fastest place, a supported drafter, better evidence."""
    pair, size = offer.pair, offer.pair.target.about
    verdict = offer.fit.verdict if offer.fit else "too big"
    slow = verdict != "gpu" and size > _QUICK
    return (
        verdict == "too big",
        not pair.own,
        _VERDICTS.index(verdict),
        bool(unserved(pair)),
        slow,
        _EVIDENCE.index(pair.evidence) if pair.evidence in _EVIDENCE else len(_EVIDENCE),
        size if slow else -size,
    )


def _best(offers: Sequence[QuantOffer]) -> QuantOffer | None:
    """On a GPU the largest that fits whole; elsewhere, where speed depends on bytes, the usual one or a smaller one."""
    on_gpu = [offer for offer in offers if offer.fit.verdict == "gpu" and offer.quant.label.upper() not in _FULL]
    if on_gpu:
        return max(on_gpu, key=lambda offer: offer.quant.size)
    fitting = [offer for offer in offers if offer.fit.verdict != "too big"]
    for label in _USUAL:
        for offer in fitting:
            if offer.quant.label.upper() == label:
                return offer
    small = [offer for offer in fitting if offer.quant.label.upper() not in _FULL]
    return max(small or fitting, key=lambda offer: offer.quant.size, default=None)


def _here(quant: Quant, installed: Sequence[Installed]) -> str:
    """The name of an installed quantization, else empty."""
    first = quant.files[0]
    file = first.name.rpartition("/")[2].lower()
    for model in installed:
        same = first.sha256 is not None and first.sha256 == model.sha256
        if same or ((model.repo or "").lower() == first.repo.lower() and model.path.name.lower() == file):
            return model.name
    return ""


def _is_target(file: CatalogFile, model: Installed) -> bool:
    return model.usable and is_model(
        file, [model.name.partition(":")[0], model.title, model.path.stem, model.repo or ""], model.sha256
    )
