"""``slipstream models``: its commands."""

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slipstream.app.cli.models_tables import (
    Bar,
    catalog_table,
    models_table,
    pairs_table,
    print_json,
    quants_table,
    search_table,
    shown_fit,
)
from slipstream.app.cli.streams import can_ask, confirmed, notice, notice_if_slow
from slipstream.app.library import format as models_words
from slipstream.app.library.load_request import usual
from slipstream.app.library.manager import ModelManager
from slipstream.app.library.offers import QuantOffer, Removal
from slipstream.app.platform.paths import Paths
from slipstream.app.platform.safe_text import one_line, plural
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.vocabulary import vocabulary_difference
from slipstream.models.hub.downloads import partials
from slipstream.models.hub.types import Progress
from slipstream.models.library.pairing import DRAFT, PairOffer
from slipstream.models.library.records import InstalledModel, Verification

_SHOWN: Final = 3  # maximum chat titles in the warning before a removal
INTERRUPTED: Final = 130


def models(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if a model is broken, 130 if it was interrupted."""
    actions = {"search": _search, "pull": pull, "import": _import, "pairs": _pairs}
    actions |= {"verify": verify, "rm": remove, "undo": _undo}
    return actions.get(options.models_command, _list)(ModelManager(Paths.default()), options)


@contextmanager
def _asking(manager: ModelManager) -> Iterator[None]:
    with notice_if_slow(f"waiting for {manager.hub.host} …; Ctrl-C stops"):
        yield


def _list(manager: ModelManager, options: argparse.Namespace) -> int:
    with notice_if_slow("reading the models"):
        found = manager.installed()
    unfinished = partials(manager.paths.models)
    if options.json:
        print_json({"models": found, "unfinished": unfinished, "trash": 0})  # the system's trash is not counted
        return 0
    shown = [model for model in found if model.role != "other" or model.problem]
    print(models_table(shown, usual(manager.paths)))
    total = models_words.size(sum(model.size for model in shown))
    ours = models_words.size(sum(model.size for model in shown if model.origin == "ours"))
    print(f"{plural(len(shown), 'model')}, {total}; {ours} of it slipstream's own.")
    for part in unfinished:
        name = one_line(f"{part.files[0].repo}/{part.files[0].name}")
        print(f"Unfinished: {name}, {part.done / max(1, part.total):.0%}; go on: slipstream models pull {name}")
    return 0


def _search(manager: ModelManager, options: argparse.Namespace) -> int:
    text = " ".join(options.text)
    with _asking(manager):
        found = manager.search(text, options.sort, options.limit)
        exact = next((repo.id for repo in found[:1] if repo.id.lower() == text.strip().lower()), None)
        quants = manager.quants(exact) if exact else []
    if options.json:
        print_json({"repositories": found, "quants": quants})
    elif exact:
        print(f"{search_table(found[:1])}\n\n{quants_table(quants)}")
    elif found:
        print(search_table(found))
    else:
        print(f"nothing on the hub has GGUF files and matches {text!r}.", file=sys.stderr)
    return 0


def _import(manager: ModelManager, options: argparse.Namespace) -> int:
    with Bar("copying") as bar, notice_if_slow("reading the file"):
        path = Path(options.path).expanduser()
        found = manager.import_path(path, "copy" if options.copy else "link", bar.bytes, bar.cancelled)
    if options.json:
        print_json(found if path.is_dir() else found[0])
    else:
        for model in found:
            print(f"{one_line(model.name)} is here: slipstream -m {one_line(model.name)}")
    return 0


def _pairs(manager: ModelManager, options: argparse.Namespace) -> int:
    if problem := manager.catalog().problem:
        notice(problem)
    if options.name is None:
        with notice_if_slow("measuring this machine"):
            offers = manager.offers()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        print_json(offers) if options.json else print(catalog_table(offers, width))
        return 0
    pairs = manager.pairs(options.name)
    if options.json:
        print_json(pairs)
    elif pairs:
        print(pairs_table(pairs))
    else:
        print("no drafter for it is known; lookup and recycle serve any model.", file=sys.stderr)
    return 0


def verify(manager: ModelManager, options: argparse.Namespace) -> int:
    """Checks every byte of a model, or of all of slipstream's own; returns 1 if one is damaged."""
    names = [options.name] if options.name else [m.name for m in manager.installed() if m.origin == "ours"]
    checked: list[Verification] = []
    try:
        for name in names:
            with Bar(f"checking {one_line(name)}") as bar:
                found = manager.verify(name, bar.bytes, bar.cancelled)
            checked.append(found)
            if not options.json:
                print(_verdict(found), flush=True)
    except KeyboardInterrupt:
        notice("stopped; nothing was changed.")
        return INTERRUPTED
    if options.json:
        print_json(checked)
    elif not checked:
        print("there are no models of slipstream's own to check.", file=sys.stderr)
    return int(any(each.problem for each in checked))


def _verdict(checked: Verification) -> str:
    name = one_line(checked.model.name)
    if checked.problem:
        return f"{name}: damaged. {one_line(f'{checked.problem} {checked.hint}')}"
    if all(checked.expected):
        return f"{name}: OK, every byte as published."
    if checked.model.origin == "ours":
        return f"{name}: OK, but never checked before; its hash is kept now, and the next check compares it."
    return f"{name}: readable; no published hash to compare it with."


def remove(manager: ModelManager, options: argparse.Namespace) -> int:
    """Removes one of slipstream's own models; returns 1 if the user declined."""
    if options.name is None:
        raise UsageError("rm needs the name of a model.", "See slipstream models list.")
    removal = manager.removal(options.name)
    print(_warning(removal, options.now), file=sys.stderr)
    if not options.yes:
        if not can_ask():
            raise UsageError("cannot ask whether to remove it: this is not a terminal.", "Add --yes.")
        if not confirmed("Remove it?"):
            notice("not removed.")
            return 1
    removed = manager.remove(removal.model.name, options.now)
    if options.now:
        print(f"{one_line(removed.name)} is gone; {models_words.size(removed.freed)} freed.")
    else:
        back = "Bring it back: slipstream models undo; free its room: models rm --now"
        print(f"{one_line(removed.name)} is removed. {back}")
    return 0


def _undo(manager: ModelManager, options: argparse.Namespace) -> int:
    print(f"{one_line(manager.undo().name)} is back.")
    return 0


def _warning(removal: Removal, now: bool) -> str:
    when = "" if now else " once the system's trash is emptied"
    frees = f"frees {models_words.size(removal.frees)}{when}" if removal.frees else "frees nothing: it is a link"
    text = f"{one_line(removal.model.name)}: {frees}"
    if removal.chats:
        titles = ", ".join(f"“{one_line(title)}”" for title in removal.chats[:_SHOWN])
        more = f" and {len(removal.chats) - _SHOWN} more" if len(removal.chats) > _SHOWN else ""
        text += f"; it wrote in {titles}{more}, which stay and go on with another model"
    return text + "."


def pull(manager: ModelManager, options: argparse.Namespace) -> int:
    with _asking(manager):
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
        notice("no better drafter is known for it than what is here.")
    if drafter and (options.with_drafter or _agreed(drafter)):
        small = _fetched_drafter(manager, model, drafter)
        if small is None:
            return INTERRUPTED
        fetched.append(small)
    elif drafter and drafter.fetch:
        known = f"{drafter.fetch.repo}:{drafter.fetch.quant}".rstrip(":")
        notice(f"its drafter {drafter.name}: slipstream models pull {known}")
    if options.json:
        print_json(fetched)
    else:
        for each in fetched:
            print(f"{one_line(each.name)} is here: {models_words.size(each.size)}")
        if model.role == "chat":
            print(f"chat with it: slipstream -m {shlex.quote(one_line(model.name))}")
    return 0


def _fetched(manager: ModelManager, offer: QuantOffer, reference: str) -> InstalledModel | None:
    quant = offer.quant
    if offer.installed:
        model = manager.store.find(offer.installed)
        if not model.problem:
            if manager.lacking(quant):
                with Bar("mmproj") as bar:
                    manager.pull_projector(quant, _shower(bar, "mmproj"), bar.cancelled)
            notice(f"{model.name} is here already.")
            return model
    if quant.projector:
        notice(f"it sees images: its mmproj file comes along, {models_words.size(quant.projector.size)}")
    runs = "" if quant.drafts else f", runs {shown_fit(offer.fit)}"
    notice(f"{quant.repo}:{quant.label}, {models_words.size(quant.size)}{runs}")
    last = Progress(0, quant.size)
    with Bar(quant.label) as bar:
        show = _shower(bar, quant.label)

        def on_progress(progress: Progress) -> None:
            nonlocal last
            last = progress
            show(progress)

        fetched = manager.pull(quant, on_progress, bar.cancelled)
    if fetched is None:
        so_far = f"{last.done / max(1, last.total):.0%}, {models_words.size(last.done)}"
        total = models_words.size(last.total)
        notice(f"paused at {so_far} of {total}; go on: slipstream models pull {reference}")
    return fetched


def _shower(bar: Bar, label: str) -> Callable[[Progress], None]:
    """Returns what shows the progress of a download on a bar; each reason for a wait gets a line once."""
    notes: set[str] = set()

    def show(progress: Progress) -> None:
        if progress.note and progress.note not in notes:
            notes.add(progress.note)
            bar.note(f"{progress.note} …; Ctrl-C pauses")
        bar.line(_shown(label, progress), progress.done, progress.total)

    return show


def _shown(label: str, progress: Progress) -> str:
    text = f"{one_line(label)}: {models_words.size(progress.done)} of {models_words.size(progress.total)}"
    if progress.phase != "downloading":
        return f"{text}, {progress.phase}"
    if progress.quiet >= 1:
        return f"{text}, silent for {progress.quiet:.0f} s"
    left = f", {models_words.left(progress.left)} left" if progress.left is not None else ""
    return f"{text}, {models_words.size(round(progress.speed))}/s{left}"


def _drafter(manager: ModelManager, model: InstalledModel) -> PairOffer | None:
    """The best drafter to fetch; None if an installed one is at least as good, or none is known."""
    for offer in manager.pairs(model.name):
        if offer.sound:
            return None
        if offer.fetch and not offer.why_not:
            return offer
    return None


def _agreed(drafter: PairOffer) -> bool:
    size = f" ({models_words.size(drafter.size)})" if drafter.size else ""
    return can_ask() and confirmed(f"Fetch its drafter {drafter.name}{size}, too?", enter=True)


def _fetched_drafter(manager: ModelManager, model: InstalledModel, drafter: PairOffer) -> InstalledModel | None:
    with _asking(manager):
        offer = manager.drafter_of(drafter)
        compares = drafter.method == DRAFT and not offer.installed
        theirs = manager.hub.header(*offer.quant.files) if compares else None
    if theirs and (difference := vocabulary_difference(read_header(model.path), theirs)):
        notice(f"vocabularies differ: {difference}; its drafts are converted.")
    return _fetched(manager, offer, f"{offer.quant.repo}:{offer.quant.label}")
