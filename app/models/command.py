"""``slipstream models``: the choice between its commands, and the short ones of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.app.models.answers import print_json
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line

if TYPE_CHECKING:
    from slipstream.app.models.manager import ModelManager


def models(options: argparse.Namespace) -> int:
    """Runs the command that is asked for.

    Args:
        options: as :func:`slipstream.app.models.options.add_models` describes them.

    Returns:
        The exit code: 0; 1 if a model is broken; 130 if it was interrupted.

    Raises:
        SlipstreamError: If it cannot be done.
    """
    from slipstream.app.models.manager import ModelManager

    manager = ModelManager(Paths.default())
    match options.models_command:
        case "search":
            return _search(manager, options)
        case "pull":
            from slipstream.app.models.pulling import pull

            return pull(manager, options)
        case "import":
            return _import(manager, options)
        case "verify":
            from slipstream.app.models.checking import verify

            return verify(manager, options)
        case "rm":
            from slipstream.app.models.removing import remove

            return remove(manager, options)
        case "undo":
            removed = manager.undo()
            print(f"{removed.name} is back.")
            return 0
        case "pairs":
            return _pairs(manager, options)
    return _list(manager, options)


def _list(manager: ModelManager, options: argparse.Namespace) -> int:
    from slipstream.app.model_choice import usual
    from slipstream.app.models.words import models_table
    from slipstream.app.tui.widgets import models_words
    from slipstream.models.download import partials

    found = manager.installed()
    unfinished = partials(manager.paths.models)
    trash = manager.store.trash_size()
    if options.json:
        print_json({"models": found, "unfinished": unfinished, "trash": trash})
        return 0
    shown = [model for model in found if model.role != "other" or model.problem]
    print(models_table(shown, usual(manager.paths)))
    total = models_words.size(sum(model.size for model in shown))
    ours = models_words.size(sum(model.size for model in shown if model.origin == "ours"))
    count = f"{len(shown)} model{'s' * (len(shown) != 1)}"
    print(f"{count}, {total}; {ours} of it slipstream's own.")
    for part in unfinished:
        name = one_line(f"{part.files[0].repo}/{part.files[0].name}")
        print(f"Unfinished: {name}, {part.done / max(1, part.total):.0%}; go on: slipstream models pull {name}")
    if trash:
        print(f"Removed, and still on the disk: {models_words.size(trash)}; free it: slipstream models rm --now")
    return 0


def _search(manager: ModelManager, options: argparse.Namespace) -> int:
    from slipstream.app.models.words import quants_table, search_table

    text = " ".join(options.text)
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
    from slipstream.app.models.answers import Bar

    with Bar("copying") as bar:
        model = manager.import_file(Path(options.path), "copy" if options.copy else "link", bar.bytes, bar.cancelled)
    if options.json:
        print_json(model)
    else:
        print(f"{one_line(model.name)} is here: slipstream -m {one_line(model.name)}")
    return 0


def _pairs(manager: ModelManager, options: argparse.Namespace) -> int:
    from slipstream.app.models.words import catalog_table, pairs_table

    if problem := manager.catalog().problem:
        print(f"slipstream: {problem}", file=sys.stderr)
    if options.name is None:
        offers = manager.offers()
        print_json(offers) if options.json else print(catalog_table(offers))
        return 0
    pairs = manager.pairs(options.name)
    if options.json:
        print_json(pairs)
    elif pairs:
        print(pairs_table(pairs))
    else:
        print("no drafter for it is known; lookup, lookahead and recycle serve any model.", file=sys.stderr)
    return 0
