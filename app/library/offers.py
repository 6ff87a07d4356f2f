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
from slipstream.models.llama.throughput import Throughput
from slipstream.models.memory.fit import Fit, estimate
from slipstream.models.memory.speed import Prediction, predict, rough_reads

CONTEXTS: Final = (4096, 8192, 32768)  # contexts, in tokens, for which the memory of a catalogue's pair is shown
_USUAL: Final = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "UD-Q4_K_M", "IQ4_XS", "Q4_0", "MXFP4", "MXFP4_MOE")
"""Quantizations for slow memory, in order of preference; the first is also llama.cpp's default."""
_FULL: Final = frozenset({"F32", "F16", "BF16"})
READING: Final = 6.0  # reading speed of people, in tokens per second
_EVIDENCE: Final = ("documentation", "catalogue", "reported", "suggested")


@dataclass(frozen=True, slots=True)
class QuantOffer:
    """A quantization in a repository."""

    quant: Quant  # the quantization on the hub
    fit: Fit  # its placement here
    best: bool  # whether it is recommended for this machine
    installed: str  # its local name if it is installed, else empty
    speed: Prediction | None = None  # None if it cannot be predicted


@dataclass(frozen=True, slots=True)
class CatalogOffer:
    """A pair of the catalogue, rated for this machine."""

    pair: CatalogPair
    fit: Fit | None  # placement of the target and its drafter here; None if the size is unknown
    memory: dict[int, int]  # bytes of both by ``CONTEXTS``; empty if the size is unknown
    installed: str  # the target's local name if it is installed, else empty
    speed: Prediction | None = None  # of the target, alone and with its drafter; None if it cannot be predicted

    @property
    def runs(self) -> bool:
        """Whether it is known to fit this machine."""
        return self.fit is not None and self.fit.verdict != "too big"


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a model."""

    model: Installed
    frees: int  # bytes freed on the disk; a link frees none
    chats: tuple[str, ...]  # titles of the chats with its replies, newest first


def quant_offers(
    quants: Sequence[Quant],
    params: int,
    context: int,
    devices: Sequence[Device],
    installed: Sequence[Installed],
    machine: Sequence[Throughput],
) -> list[QuantOffer]:
    """Rates the quantizations of a repository, and marks the recommended one.

    Args:
        params: Number of the model's parameters; 0 if unknown.
        context: Context that it was trained with, in tokens; 0 if unknown.
    """
    offers = []
    for quant in quants:
        fit = estimate(quant.size, params, devices, context or None)
        known = CatalogFile(quant.repo.rpartition("/")[2])  # parses experts from the name
        reads = rough_reads(quant.size, params, known.used, quant.label, known.experts)
        speed = None if quant.drafts else predict(reads, fit, machine)
        offers.append(QuantOffer(quant, fit, False, _here(quant, installed), speed))
    best = _best([offer for offer in offers if not offer.quant.drafts])
    return [replace(offer, best=offer is best) for offer in offers]


def catalog_offers(
    pairs: Iterable[CatalogPair],
    devices: Sequence[Device],
    installed: Sequence[Installed],
    machine: Sequence[Throughput],
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
        memory = {n_ctx: each.need.total for n_ctx, each in fits.items()}
        offers.append(CatalogOffer(pair, fit, memory, here, _speed(pair, fit, machine)))
    return sorted(offers, key=_rank)


def recommended(offers: Sequence[CatalogOffer]) -> list[CatalogOffer]:
    """The best pair for each model that runs here, in the order of ``offers``."""
    found: dict[str, CatalogOffer] = {}
    for offer in offers:
        if offer.runs:
            found.setdefault(offer.pair.target.model.casefold(), offer)
    return list(found.values())


def best_offer(offers: Sequence[CatalogOffer]) -> CatalogOffer | None:
    """The pair to suggest on this machine, or None: it runs here, is quick enough, and others have used it."""
    shown = recommended(offers)
    return next((offer for offer in shown if is_quick(offer.speed) and not offer.pair.untested), None)


def _speed(pair: CatalogPair, fit: Fit | None, machine: Sequence[Throughput]) -> Prediction | None:
    """Predicts the speed of a pair, without its drafter if that is not supported."""
    if fit is None:
        return None
    target, drafter = pair.target, pair.drafter
    reads = rough_reads(target.about, target.params, target.used, target.quant, target.experts)
    if unserved(pair):
        return predict(reads, fit, machine)
    drafts = rough_reads(drafter.about, drafter.params, drafter.used, drafter.quant) if drafter else None
    return predict(reads, fit, machine, pair.method, drafts if pair.method == DRAFT else None)


def _drafter_size(pair: CatalogPair) -> int:
    """Bytes of a pair's drafter; not estimated for heads, since their name states the target's parameters."""
    if pair.drafter is None:
        return 0
    return pair.drafter.about if pair.method == DRAFT else pair.drafter.size


def _rank(offer: CatalogOffer) -> tuple[bool, bool, bool, bool, bool, int, float]:
    """Sort key: runs, the user's own entry, tested, quick enough, supported drafter, evidence, size (speed if slow)."""
    pair = offer.pair
    slow = not is_quick(offer.speed)
    speed = offer.speed.plain.middle if offer.speed else 0.0
    return (
        not offer.runs,
        not pair.own,
        pair.untested,
        slow,
        bool(unserved(pair)),
        _EVIDENCE.index(pair.evidence) if pair.evidence in _EVIDENCE else len(_EVIDENCE),
        -speed if slow else -pair.target.about,
    )


def is_quick(speed: Prediction | None) -> bool:
    """Whether the model writes at least as fast as people read."""
    return speed is not None and speed.plain.middle >= READING


def _best(offers: Sequence[QuantOffer]) -> QuantOffer | None:
    """The largest that writes as fast as people read; if there is none, the preferred one of ``_USUAL``."""
    fitting = [offer for offer in offers if offer.fit.verdict != "too big"]
    small = [offer for offer in fitting if offer.quant.label.upper() not in _FULL]
    if quick := [offer for offer in small if is_quick(offer.speed)]:
        return max(quick, key=lambda offer: offer.quant.size)
    for label in _USUAL:
        for offer in fitting:
            if offer.quant.label.upper() == label:
                return offer
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
