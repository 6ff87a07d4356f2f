"""``slipstream models pull``: fetches a model, and its drafter if that is wanted."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from slipstream.app.models.answers import Bar, print_json
from slipstream.app.models.manager import ModelManager
from slipstream.app.models.offers import QuantOffer
from slipstream.app.models.words import shown_fit
from slipstream.app.safe_text import one_line
from slipstream.app.tui.widgets import models_words
from slipstream.models.download_types import Progress
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf import read_header
from slipstream.models.pairing import DRAFT, PairOffer
from slipstream.models.store_types import Installed
from slipstream.models.vocabulary import vocabulary_difference

INTERRUPTED: Final = 130


def pull(manager: ModelManager, options: argparse.Namespace) -> int:
    """Fetches what is asked for.

    Returns:
        The exit code: 0, or 130 if it was paused.

    Raises:
        UsageError: If there is no such model on the hub.
        SlipstreamError: If it does not fit, or cannot be fetched.
    """
    offer = manager.wanted(options.reference)
    if offer.fit.verdict == "too big" and not offer.quant.drafts and not options.force:
        raise SlipstreamError(
            f"{offer.quant.repo}:{offer.quant.label} is too big for this machine: {offer.fit.why}",
            "Choose a smaller one, or add --force.",
        )
    model = _fetched(manager, offer, options.reference)
    if model is None:
        return INTERRUPTED
    fetched = [model]
    drafter = None if model.role != "chat" else _drafter(manager, model)
    if options.with_drafter and drafter is None and model.role == "chat":
        print("slipstream: no better drafter is known for it than what is here.", file=sys.stderr)
    if drafter and (options.with_drafter or _agreed(drafter)):
        small = _fetched_drafter(manager, model, drafter)
        if small is None:
            return INTERRUPTED
        fetched.append(small)
    elif drafter and drafter.fetch:
        known = f"{drafter.fetch.repo}:{drafter.fetch.quant}".rstrip(":")
        print(f"slipstream: its drafter {drafter.name}: slipstream models pull {known}", file=sys.stderr)
    if options.json:
        print_json(fetched)
    else:
        for each in fetched:
            print(f"{one_line(each.name)} is here: {models_words.size(each.size)}")
        if model.role == "chat":
            print(f"chat with it: slipstream -m {one_line(model.name)}")
    return 0


def _fetched(manager: ModelManager, offer: QuantOffer, reference: str) -> Installed | None:
    """The model once it is here; None if it was paused."""
    quant = offer.quant
    if offer.installed:
        model = manager.store.find(offer.installed)
        if not model.problem:
            print(f"slipstream: {model.name} is here already.", file=sys.stderr)
            return model
    runs = "" if quant.drafts else f", runs {shown_fit(offer.fit)}"
    print(
        f"slipstream: {one_line(quant.repo)}:{one_line(quant.label)}, {models_words.size(quant.size)}{runs}",
        file=sys.stderr,
    )
    last = Progress(0, quant.size)
    notes: set[str] = set()
    with Bar(quant.label) as bar:

        def heard(progress: Progress) -> None:
            nonlocal last
            last = progress
            if progress.note and progress.note not in notes:
                notes.add(progress.note)
                print(f"\rslipstream: {one_line(progress.note)}", file=sys.stderr)
            bar.line(_shown(quant.label, progress), progress.done, progress.total)

        model_or_none = manager.pull(quant, heard, bar.cancelled)
    if model_or_none is None:
        share = last.done / max(1, last.total)
        print(
            f"slipstream: paused at {share:.0%}, {models_words.size(last.done)} of {models_words.size(last.total)}; "
            f"go on: slipstream models pull {reference}",
            file=sys.stderr,
        )
    return model_or_none


def _shown(label: str, progress: Progress) -> str:
    text = f"{one_line(label)}: {models_words.size(progress.done)} of {models_words.size(progress.total)}"
    if progress.phase != "downloading":
        return f"{text}, {progress.phase}"
    if progress.quiet >= 1:
        return f"{text}, silent for {progress.quiet:.0f} s"
    left = f", {models_words.left(progress.left)} left" if progress.left is not None else ""
    return f"{text}, {models_words.size(round(progress.speed))}/s{left}"


def _drafter(manager: ModelManager, model: Installed) -> PairOffer | None:
    """The catalogue's drafter that would be the best, unless one as good is here."""
    for offer in manager.pairs(model.name):
        if offer.sound:
            return None
        if offer.fetch and not offer.why_not:
            return offer
    return None


def _agreed(drafter: PairOffer) -> bool:
    """Asks on a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    size = f" ({models_words.size(drafter.size)})" if drafter.size else ""
    print(f"Fetch its drafter {drafter.name}{size}, too? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _fetched_drafter(manager: ModelManager, model: Installed, drafter: PairOffer) -> Installed | None:
    """Fetches a drafter, its vocabulary checked before its gigabytes are asked for."""
    offer = manager.drafter_of(drafter)
    if drafter.method == DRAFT and not offer.installed:
        theirs = manager.hub.header(*offer.quant.files)
        difference = vocabulary_difference(read_header(model.path), theirs)
        if difference:
            print(
                f"slipstream: {one_line(f'vocabularies differ: {difference}')}; its text will be translated.",
                file=sys.stderr,
            )
    return _fetched(manager, offer, f"{offer.quant.repo}:{offer.quant.label}")
