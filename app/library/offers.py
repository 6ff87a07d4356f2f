"""Quantizations and pairs, each rated for this machine by its memory and its bandwidth.

A model whose replies were timed has their speed. That of others follows from the bandwidth of the memory. It and the
cost of rows are measured in the first few runs; the best readings are stored. A run in which other programs used the
processor does not count: the next one measures again, and until then no machine is taken for slower than usual ones.
"""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.app.platform.paths import write_private
from slipstream.models import DEFAULT_CONTEXT
from slipstream.models.errors import SlipstreamError
from slipstream.models.hub.types import Quant
from slipstream.models.library.catalog import CatalogFile, CatalogPair, is_model
from slipstream.models.library.pairing import DRAFT, unserved
from slipstream.models.library.records import InstalledModel
from slipstream.models.llama.devices import Device, processor
from slipstream.models.memory.fit import Fit, estimate
from slipstream.models.memory.row_cost import LITTLE, WORTH, best_gain, pass_costs, type_of
from slipstream.models.memory.speed import (
    Bandwidth,
    Prediction,
    bandwidth,
    believed,
    packed,
    predict,
    row_times,
    unpacked,
)
from slipstream.models.outside import read_limited

# contexts, in tokens, for which the memory of a catalogue's pair is shown
CONTEXTS: Final = (DEFAULT_CONTEXT // 2, DEFAULT_CONTEXT, 4 * DEFAULT_CONTEXT)
_USUAL: Final = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "UD-Q4_K_M", "IQ4_XS", "Q4_0", "MXFP4", "MXFP4_MOE")
"""Quantizations for slow memory, in order of preference; the first is also llama.cpp's default."""
_FULL: Final = frozenset({"F32", "F16", "BF16"})
_FILE: Final = "machine_speed.json"
_MOST_BYTES: Final = 1 << 20
_TIMES: Final = 3  # number of undisturbed measurements, in separate runs: a short disturbance may go unnoticed
_NEAR: Final = 0.9  # least size of a file, relative to the largest, that is preferred because drafting gains with it
NO_REPLIES: Final[Mapping[str, float]] = MappingProxyType({})
READING: Final = 6.0  # reading speed of people, in tokens per second
_FIRST_A_CORE: Final = 1 << 30  # bytes of a first download for each core of a machine without a GPU
_EVIDENCE: Final = ("documentation", "catalogue", "reported", "suggested")


@dataclass(frozen=True, slots=True)
class QuantOffer:
    quant: Quant  # the quantization on the hub
    fit: Fit  # its placement here
    best: bool  # whether it is recommended for this machine
    installed: str  # its local name if it is installed, else empty
    speed: Prediction | None = None  # None if it cannot be predicted
    drafting: float = 0.0  # gain of a good step of drafting over plain decoding; 0 if unknown


@dataclass(frozen=True, slots=True)
class CatalogOffer:
    """A pair of the catalogue, rated for this machine."""

    pair: CatalogPair
    fit: Fit | None  # placement of the target and its drafter here; None if the size is unknown
    memory: dict[int, int]  # bytes of both by ``CONTEXTS``; empty if the size is unknown
    installed: str  # the target's local name if it is installed, else empty
    speed: Prediction | None = None  # of the target; None if it cannot be predicted
    heads: int = 0  # drafters for the target that ship with Slipstream
    modest: bool = True  # whether its size suits a first download on this machine

    @property
    def runs(self) -> bool:
        return self.fit is not None and self.fit.verdict != "too big"


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a model."""

    model: InstalledModel
    frees: int  # bytes freed on the disk; a link frees none
    chats: tuple[str, ...]  # titles of the chats with its replies, newest first


def quant_offers(
    quants: Sequence[Quant],
    params: int,
    context: int,
    devices: Sequence[Device],
    installed: Sequence[InstalledModel],
    machine: Sequence[Bandwidth],
) -> list[QuantOffer]:
    """Rates the quantizations of a repository, and marks the recommended one; 0 is an unknown number."""
    offers = []
    for quant in quants:
        fit = estimate(quant.size, params, devices, context or None)
        known = CatalogFile(quant.repo.rpartition("/")[2])  # parses experts from the name
        speed = None if quant.drafts else predict(_read(quant.size, params, known.used), fit, machine)
        times = row_times(machine, on_gpu=fit.verdict == "gpu")
        drafting = best_gain(pass_costs({type_of(quant.label): 1.0}, times))
        offers.append(QuantOffer(quant, fit, False, _here(quant, installed), speed=speed, drafting=drafting))
    best = _best([offer for offer in offers if not offer.quant.drafts])
    return [replace(offer, best=offer is best) for offer in offers]


def catalog_offers(
    pairs: Iterable[CatalogPair],
    devices: Sequence[Device],
    installed: Sequence[InstalledModel],
    machine: Sequence[Bandwidth],
    replies: Mapping[str, float] = NO_REPLIES,
    bundled: Path | None = None,
) -> list[CatalogOffer]:
    """Rates the pairs whose target can be fetched, best for this machine first.

    ``replies`` are tokens a second of installed models, by fingerprint; ``bundled`` has a folder for each model with
    heads that ship.
    """
    offers = []
    most = inf if any(device.kind in ("gpu", "igpu") for device in devices) else _FIRST_A_CORE * (os.cpu_count() or 1)
    for pair in pairs:
        if not pair.target.repo:
            continue
        size, params, drafter = pair.target.about, pair.target.params, _drafter_size(pair)
        fits = {n: estimate(size, params, devices, want_ctx=n, draft_size=drafter) for n in CONTEXTS} if size else {}
        fit = estimate(size, params, devices, draft_size=drafter) if size else None
        here = next((model for model in installed if _is_target(pair.target, model)), None)
        memory = {n_ctx: each.need.total for n_ctx, each in fits.items()}
        if here and here.fingerprint in replies:
            speed: Prediction | None = Prediction(replies[here.fingerprint], "replies")
        else:
            speed = predict(_read(size, params, pair.target.used), fit, machine) if fit else None
        heads = len(list((bundled / pair.target.model.lower()).glob("*.gguf"))) if bundled and pair.first else 0
        modest = size + drafter <= most
        offers.append(CatalogOffer(pair, fit, memory, here.name if here else "", speed, heads=heads, modest=modest))
    return sorted(offers, key=_rank)


def recommended(offers: Sequence[CatalogOffer]) -> list[CatalogOffer]:
    found: dict[str, CatalogOffer] = {}
    for offer in offers:
        if offer.runs:
            found.setdefault(offer.pair.target.model.casefold(), offer)
    return list(found.values())


def best_offer(offers: Sequence[CatalogOffer]) -> CatalogOffer | None:
    """The pair to suggest on this machine, or None: it runs here, is quick, and others have used it.

    Where nothing was fetched yet, its size is modest too: 12 GB are no first download for two cores.
    """
    good = (offer for offer in recommended(offers) if is_quick(offer.speed) and offer.modest and not offer.pair.first)
    return next((offer for offer in good if not offer.pair.untested), None)


def first_offers(offers: Sequence[CatalogOffer]) -> list[CatalogOffer]:
    """What to suggest on the first screen: the small model whose drafters ship, and the best one for this machine."""
    small = next((offer for offer in offers if offer.pair.first and offer.runs), None)
    return [offer for offer in (small, best_offer(offers)) if offer]


def _read(size: int, params: int, used: int) -> float:
    """Bytes that a token reads of a model of ``size`` bytes; ``used``: the parameters that it uses, 0 for all."""
    return size * min(1.0, used / params) if used and params else float(size)


def _drafter_size(pair: CatalogPair) -> int:
    """Bytes of a pair's drafter; not estimated for heads, since their name states the target's parameters."""
    if pair.drafter is None:
        return 0
    return pair.drafter.about if pair.method == DRAFT else pair.drafter.size


def _rank(offer: CatalogOffer) -> tuple[bool, bool, bool, bool, bool, bool, bool, int, float]:
    """Sort key: runs, own entry, tested, quick, else its speed, modest, drafter runs, not tiny, evidence, size."""
    pair = offer.pair
    slow = not is_quick(offer.speed)
    speed = offer.speed.tok_per_s if offer.speed else 0.0
    return (
        not offer.runs,
        not pair.own,
        pair.untested,
        slow,
        not slow and not offer.modest,
        bool(unserved(pair)),
        pair.first,
        _EVIDENCE.index(pair.evidence) if pair.evidence in _EVIDENCE else len(_EVIDENCE),
        -speed if slow else -pair.target.about,
    )


def is_quick(speed: Prediction | None) -> bool:
    return speed is not None and speed.tok_per_s >= READING


def _best(offers: Sequence[QuantOffer]) -> QuantOffer | None:
    """The largest that writes as fast as people read; if there is none, the preferred one of ``_USUAL``.

    If drafting gains little with the largest, one that is nearly as large and can gain is preferred.
    """
    fitting = [offer for offer in offers if offer.fit.verdict != "too big"]
    small = [offer for offer in fitting if offer.quant.label.upper() not in _FULL]
    if quick := [offer for offer in small if is_quick(offer.speed)]:
        largest = max(quick, key=lambda offer: offer.quant.size)
        if 0 < largest.drafting < LITTLE:
            near = [each for each in quick if each.quant.size > _NEAR * largest.quant.size and each.drafting >= WORTH]
            return max(near, key=lambda offer: offer.quant.size, default=largest)
        return largest
    usual = [offer for label in _USUAL for offer in fitting if offer.quant.label.upper() == label]
    return usual[0] if usual else max(small or fitting, key=lambda offer: offer.quant.size, default=None)


def _here(quant: Quant, installed: Sequence[InstalledModel]) -> str:
    first = quant.files[0]
    place = first.repo.lower(), first.name.rpartition("/")[2].lower()
    for model in installed:
        same = first.sha256 is not None and first.sha256 == model.sha256
        if same or place == ((model.repo or "").lower(), model.path.name.lower()):
            return model.name
    return ""


def _is_target(file: CatalogFile, model: InstalledModel) -> bool:
    return model.usable and is_model(
        file, [model.name.partition(":")[0], model.title, model.path.stem, model.repo or ""], model.sha256
    )


def kept_speed(folder: Path) -> list[Bandwidth]:
    """The best earlier measurements of this machine and this llama.cpp; empty if there are none."""
    return believed(_kept(folder)[1], os.cpu_count() or 1)


def machine_speed(folder: Path) -> list[Bandwidth]:
    """The best measurements; while they are few, a new one of a second or two is added."""
    times, kept = _kept(folder)
    if times >= _TIMES:
        return believed(kept, os.cpu_count() or 1)
    now = bandwidth()
    times += all(each.basis != "busy" for each in now)
    best = {each.kind: each for each in kept}
    for each in now:
        old = best.get(each.kind, each)
        basis = each.basis if old.basis == "busy" else old.basis
        rows = {
            name: {n: min(ns, times.get(n, ns)) for n, ns in each.rows[name].items()} if name in each.rows else times
            for name, times in old.rows.items()
        }
        best[each.kind] = Bandwidth(each.kind, max(each.bytes_per_s, old.bytes_per_s), basis, {**each.rows, **rows})
    found = list(best.values())
    with suppress(SlipstreamError):
        write_private(folder / _FILE, f"{_key()}\n{times}\n{packed(found)}\n")
    return believed(found, os.cpu_count() or 1)


def _kept(folder: Path) -> tuple[int, list[Bandwidth]]:
    """The number of undisturbed measurements, and the best of all."""
    with suppress(OSError, ValueError):
        key, times, text = read_limited(folder / _FILE, _MOST_BYTES).decode().split("\n", 2)
        if key == _key() and (found := unpacked(text)):
            return int(times), found
    return 0, []


def _key() -> str:
    return f"{platform.machine()} {processor()} llama-cpp-python {version('llama-cpp-python')} rows"
