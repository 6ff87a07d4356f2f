"""Models, fits and pairs in words: tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from slipstream.app.models.offers import CatalogOffer, QuantOffer
from slipstream.app.safe_text import one_line
from slipstream.app.tui.widgets import models_words
from slipstream.models.fit import Fit
from slipstream.models.hub_types import RepoSummary
from slipstream.models.pairing import PairOffer, unserved
from slipstream.models.store_types import Installed

_UNKNOWN: Final = "-"
_NOTE: Final = 90
_WHERE: Final = {"ours": "slipstream", "hf-cache": "hub cache", "lmstudio": "LM Studio", "ollama": "Ollama"}
_FITS: Final = {"gpu": "on the GPU", "split": "partly on the GPU", "memory": "in memory", "too big": "too big"}


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells in columns."""
    lines = [tuple(headings), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def models_table(models: Sequence[Installed], usual: str) -> str:
    """The models of this machine; what is wrong with one stands below its line.

    Args:
        models: The models.
        usual: Name of the one that is taken where nobody names one.
    """
    rows = [
        (
            one_line(model.name),
            models_words.size(model.size),
            models_words.parameters(model.params) or _UNKNOWN,
            models_words.context(model.context) or _UNKNOWN,
            _WHERE.get(model.origin, model.origin),
            _state(model, usual),
        )
        for model in models
    ]
    lines = table(("NAME", "SIZE", "PARAMETERS", "CONTEXT", "WHERE", ""), rows).split("\n")
    out = lines[:1]
    for line, model in zip(lines[1:], models, strict=True):
        out.append(line)
        if model.problem:
            out.append(f"    {one_line(f'{model.problem} {model.hint}')}")
    return "\n".join(out)


def _state(model: Installed, usual: str) -> str:
    """What the last column of the list says."""
    if model.problem:
        return "broken"
    if model.role != "chat":
        return "only drafts"
    return "chosen" if model.name == usual else ""


def search_table(found: Sequence[RepoSummary]) -> str:
    """Repositories of the hub."""
    rows = [
        (
            one_line(repo.id),
            models_words.parameters(repo.total_params) or _UNKNOWN,
            models_words.context(repo.context) or _UNKNOWN,
            models_words.number(repo.downloads),
            models_words.number(repo.likes),
            one_line(repo.license) or _UNKNOWN,
            "licence to accept" if repo.gated else "",
        )
        for repo in found
    ]
    return table(("REPOSITORY", "PARAMETERS", "CONTEXT", "DOWNLOADS", "LIKES", "LICENCE", ""), rows)


def quants_table(offers: Sequence[QuantOffer]) -> str:
    """The quantizations of a repository."""
    rows = [
        (
            one_line(offer.quant.label),
            models_words.size(offer.quant.size),
            "" if offer.quant.drafts else shown_fit(offer.fit),
            "only drafts" if offer.quant.drafts else "best here" if offer.best else "",
            f"here: {one_line(offer.installed)}" if offer.installed else "",
        )
        for offer in offers
    ]
    return table(("QUANTIZATION", "SIZE", "HERE IT RUNS", "", ""), rows)


def catalog_table(offers: Sequence[CatalogOffer]) -> str:
    """The pairs of the catalogue."""
    rows = []
    for offer in offers:
        pair, memory = offer.pair, offer.memory
        size = pair.target.about
        about = "" if pair.target.size else "about "
        rows.append(
            (
                pair.target.model + (f":{pair.target.quant}" if pair.target.quant else ""),
                f"{about}{models_words.size(size)}" if size else _UNKNOWN,
                pair.drafter.model if pair.drafter else f"its own {pair.method} layers",
                pair.method,
                " / ".join(f"{memory[n] / 1e9:.1f}" for n in sorted(memory)) or _UNKNOWN,
                shown_fit(offer.fit) if offer.fit else _UNKNOWN,
                _remark(offer),
            )
        )
    headings = ("TARGET", "SIZE", "DRAFTER", "METHOD", "GB AT 4K / 8K / 32K", "HERE IT RUNS", "")
    return table(headings, rows)


def _remark(offer: CatalogOffer) -> str:
    """What the last column of the catalogue says."""
    if offer.installed:
        return f"here: {one_line(offer.installed)}"
    if offer.pair.own:
        return "your own"
    return "drafter not served yet" if unserved(offer.pair) else ""


def pairs_table(offers: Sequence[PairOffer]) -> str:
    """The drafters of a model; those that cannot serve it say why below their line."""
    lines = table(
        ("DRAFTER", "METHOD", "SIZE", "WHY", "GAIN", ""),
        [
            (
                one_line(offer.name),
                offer.method,
                models_words.size(offer.size) if offer.size else _UNKNOWN,
                offer.source,
                f"{offer.gain:.2f}x" if offer.gain else _UNKNOWN,
                "no" if offer.why_not else "to fetch" if offer.fetch else "ready",
            )
            for offer in offers
        ],
    ).split("\n")
    out = lines[:1]
    for line, offer in zip(lines[1:], offers, strict=True):
        out.append(line)
        if offer.why_not:
            instead = f"; instead: {offer.instead}" if offer.instead else ""
            out.append(f"    {one_line(offer.why_not + instead)}")
        elif offer.note:
            note = one_line(offer.note)
            out.append(f"    {note if len(note) <= _NOTE else note[:_NOTE] + '…'}")
    return "\n".join(out)


def shown_fit(fit: Fit) -> str:
    """How a model runs, in a few words."""
    return _FITS[fit.verdict]
