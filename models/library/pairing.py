"""Finds the drafters for a model: in the model itself, on this machine, and in the catalogue.

Sizes follow LM Studio's advice (https://lmstudio.ai/docs/app/advanced/speculative-decoding): no draft model for a 3B
target, at most 1B for 7B, 3B for 14B, 7B for 32B.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, get_args

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.architectures import HAS_FEATURES, LAYER_INPUTS, NO_ROLLBACK, without_mtp
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import MAX_SIZE_DIFFERENCE, vocabulary_difference, vocabulary_digest
from slipstream.models.heads.matching_heads import EAGLE, HEAD_METHODS, MTP, method_of, why_unfit
from slipstream.models.library.catalog import CatalogFile, CatalogPair, is_model
from slipstream.models.library.records import InstalledModel, parameters, size_of
from slipstream.models.outside import quoted

Source = Literal["in the model", "trained for it", "catalogue", "same vocabulary", "sizes fit", "other vocabulary"]
"""Why a drafter is offered, the best reason first."""
DRAFT: Final = "draft"
_TAKES_NOTHING_BACK: Final = "this model cannot take back tokens, so nothing can draft for it"
_SMALLER: Final = 2.0  # minimum ratio of sizes: a draft model of half the target's size costs as much as it gains
_BEST_RATIO: Final = 12.0
_WORTH_FROM: Final = 6e9
_ADVISED_RATIO: Final = 4.5
_ANY_MODEL: Final = "lookup and recycle serve any model; slipstream drafters train medusa makes heads for it"


@dataclass(frozen=True, slots=True)
class PairOffer:
    """A drafter for a model; if it is unsuitable, with the reason."""

    name: str
    method: str  # the drafting method, such as ``draft``, ``mtp`` or ``eagle3``
    source: Source  # why it is offered
    # the installed model; None for layers in the model itself, a file of heads, or a drafter to fetch
    drafter: InstalledModel | None = None
    path: Path | None = None  # its file on this machine; None for layers in the model itself or a drafter to fetch
    fetch: CatalogFile | None = None  # the download, if it is not installed
    size: int = 0  # bytes of its file; 0 if unknown or in the model itself
    ratio: float = 0.0  # the model's parameters divided by the drafter's; 0.0 if unknown
    why_not: str = ""  # why it is unsuitable; empty if it is suitable
    instead: str = ""  # what to use instead of an unsuitable one
    note: str = ""  # evidence for the pair, and reasons against it
    gain: float | None = None  # measured speed over plain decoding on this machine; None if not measured

    @property
    def ready(self) -> bool:
        """Whether it is suitable and installed."""
        return not self.why_not and self.fetch is None

    @property
    def sound(self) -> bool:
        """Whether it may be chosen by default: it certainly fits, and no measurement shows that it is slower."""
        doubtful = self.source in ("sizes fit", "other vocabulary")
        return self.ready and not doubtful and (self.gain is None or self.gain > 1.0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where to look for drafters."""

    models: Sequence[InstalledModel] = ()
    # method to file of the heads made for the model, as ``matching_heads`` finds them
    heads: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    pairs: Sequence[CatalogPair] = ()  # the pairs of the catalogue for the model
    # measured speed over plain decoding on this machine, by method
    gains: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    # whether to find how vocabularies differ; otherwise models with other vocabularies are left out without reading
    # their files
    reasons: bool = True


def pairs_for(header: Header, around: Surroundings) -> list[PairOffer]:
    """Every known drafter for a model, best first, unsuitable ones last."""
    offers = [*_inside(header, around.pairs)]
    for method, path in around.heads.items():
        offers.append(PairOffer(path.name, method, "trained for it", path=path, size=size_of(path)))
    params, vocabulary = parameters(header), vocabulary_digest(header)
    for model in around.models:
        if model.fingerprint == header.fingerprint:
            continue
        if model.role == "chat" and (around.reasons or not _other(header, vocabulary, model)):
            offers.append(_beside(header, vocabulary, params, model, around.pairs))
        elif model.role == "drafter" and model.path not in around.heads.values():
            offers += _heads_beside(header, model, around.pairs)
    offers += _to_fetch(header, params, around)
    if header.architecture in NO_ROLLBACK:
        offers = [replace(offer, why_not=offer.why_not or _TAKES_NOTHING_BACK) for offer in offers]
    drafting = [offer for offer in offers if offer.method == DRAFT and offer.ready]
    measured = [
        replace(offer, gain=around.gains.get(offer.method))
        if offer.ready and (offer.method != DRAFT or len(drafting) == 1)  # a gain does not name the draft model
        else offer
        for offer in offers
    ]
    return sorted(measured, key=_rank)


def unserved(pair: CatalogPair) -> str:
    """Why Slipstream cannot run a pair of the catalogue; empty if it can."""
    known = pair.drafter is None or pair.method in (DRAFT, *HEAD_METHODS)
    return "" if known else f"{quoted(pair.method)[1:-1]} heads are not supported"


def _inside(header: Header, pairs: Iterable[CatalogPair]) -> list[PairOffer]:
    if not header.number("nextn_predict_layers"):
        return []
    why_not = without_mtp(header)
    note = next((pair.note for pair in pairs if pair.method == MTP and pair.drafter is None), "")
    instead = _ANY_MODEL if why_not else ""
    return [PairOffer("its own MTP layers", MTP, "in the model", why_not=why_not, instead=instead, note=note)]


def _beside(
    header: Header, vocabulary: str, params: int, model: InstalledModel, pairs: Sequence[CatalogPair]
) -> PairOffer:
    ratio = params / model.params if model.params else 0.0
    offer = PairOffer(
        model.name, DRAFT, "same vocabulary", drafter=model, path=model.path, size=model.size, ratio=ratio
    )
    if model.problem:
        return replace(offer, why_not=f"its file is broken: {model.problem}", instead=model.hint)
    if ratio < _SMALLER:
        return replace(
            offer,
            why_not=f"it is too large: {_count(model.params)} parameters for a model of {_count(params)}",
            instead=f"one of at most {_count(round(params / _SMALLER))}, better {_count(round(params / _BEST_RATIO))}",
        )
    difference = "" if vocabulary == model.vocabulary else _difference(header, model)
    if difference:
        note = f"vocabularies differ: {difference}; its text is translated, which costs acceptance"
        return replace(offer, source="other vocabulary", note=note)
    known = next((pair for pair in pairs if pair.drafter and _means(pair.drafter, model)), None)
    if known:
        return replace(offer, source="catalogue", note=_evidence(known))
    return replace(offer, note=_advice(params, ratio))


def _difference(header: Header, model: InstalledModel) -> str:
    try:
        return vocabulary_difference(header, read_header(model.path))
    except SlipstreamError as error:
        return error.title


def _other(header: Header, vocabulary: str, model: InstalledModel) -> bool:
    """Whether a vocabulary certainly differs, without reading the file: different sizes may be only padding."""
    return vocabulary != model.vocabulary and not 0 < abs(header.n_vocab - model.n_vocab) <= MAX_SIZE_DIFFERENCE


def _heads_beside(header: Header, model: InstalledModel, pairs: Sequence[CatalogPair]) -> list[PairOffer]:
    """Rates an installed file of heads that does not name the model as its target."""
    known = next((pair for pair in pairs if pair.drafter and _means(pair.drafter, model)), None)
    method = known.method if known else EAGLE
    try:
        theirs = read_header(model.path)
        method = method_of(theirs) or method
        why_not = _no_heads_for(header, method) or (why_unfit(theirs, header) if method_of(theirs) else "")
    except SlipstreamError as error:
        theirs, why_not = None, error.title
    if theirs and not method_of(theirs):
        if not known:
            return []
        why_not = why_not or f"its file holds no {method} heads"
    offer = PairOffer(model.name, method, "catalogue", drafter=model, path=model.path, size=model.size)
    if why_not:
        return [replace(offer, why_not=why_not, instead=_ANY_MODEL)]
    if known:
        return [replace(offer, note=_evidence(known))]
    return [replace(offer, source="sizes fit", note="it does not say which model it was made for; its sizes fit")]


def _no_heads_for(header: Header, method: str) -> str:
    """Why heads of a method cannot work with the model's architecture; empty if they can."""
    handed_out = HAS_FEATURES if method == MTP else LAYER_INPUTS
    if method in HEAD_METHODS and header.architecture not in handed_out:
        what = "features for MTP" if method == MTP else "layers"
        return f"this version of llama.cpp hands out no {what} of the architecture {quoted(header.architecture)[1:-1]}"
    return ""


def _to_fetch(header: Header, params: int, around: Surroundings) -> list[PairOffer]:
    offers: dict[tuple[str, str], PairOffer] = {}
    for pair in around.pairs:
        drafter = pair.drafter
        if drafter is None or not drafter.repo or pair.method in around.heads:
            continue
        if pair.method == DRAFT and any(_means(drafter, model) for model in around.models):
            continue
        why_not = unserved(pair) or _no_heads_for(header, pair.method)
        offer = PairOffer(
            drafter.model,
            pair.method,
            "catalogue",
            fetch=drafter,
            size=drafter.size,
            ratio=params / drafter.params if drafter.params and pair.method == DRAFT else 0.0,
            why_not=why_not,
            instead=_ANY_MODEL if why_not else "",
            note=_evidence(pair),
        )
        offers.setdefault((pair.method, drafter.model.lower()), offer)
    return list(offers.values())


def _means(file: CatalogFile, model: InstalledModel) -> bool:
    return is_model(file, [model.name.partition(":")[0], model.title, model.repo or ""], model.sha256)


def _evidence(pair: CatalogPair) -> str:
    said = {"suggested": "suggested, untested"}.get(pair.evidence, pair.evidence)
    said = "your own entry" if pair.own else said
    return ": ".join(part for part in (said, pair.note) if part)


def _advice(params: int, ratio: float) -> str:
    if params < _WORTH_FROM:
        return "for a target this small a draft model seldom pays"
    return "" if ratio >= _ADVISED_RATIO else "it is large for this target"


def _rank(offer: PairOffer) -> tuple[bool, int, float, int, float, int]:
    """Sort key: suitability first, then measured gain, then the source and the ratio of sizes."""
    measured = 1 if offer.gain is None else 0 if offer.gain > 1.0 else 2
    distance = abs(log(offer.ratio / _BEST_RATIO)) if offer.ratio > 0 else inf
    likely = get_args(Source).index(offer.source) + (2 if offer.fetch else 0)
    return bool(offer.why_not), measured, -(offer.gain or 0.0), likely, distance, -offer.size


def _count(params: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if params >= size:
            return f"{params / size:.3g}{unit}"
    return str(params)
