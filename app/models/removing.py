"""``slipstream models rm``: says what goes, asks, and keeps it in the trash."""

from __future__ import annotations

import argparse
import sys

from slipstream.app.models.manager import ModelManager
from slipstream.app.models.offers import Removal
from slipstream.app.safe_text import one_line
from slipstream.app.tui.widgets import models_words
from slipstream.models.errors import UsageError

_SHOWN = 3


def remove(manager: ModelManager, options: argparse.Namespace) -> int:
    """Removes a model of ours, or frees what was removed before.

    Returns:
        The exit code: 0, or 1 if the owner did not want it after all.

    Raises:
        UsageError: If there is no such model, it is not ours, or nobody can be asked.
    """
    if options.name is None:
        if not options.now:
            raise UsageError("rm needs the name of a model.", "See slipstream models list.")
        print(f"{models_words.size(manager.store.empty_trash())} freed.")
        return 0
    removal = manager.removal(options.name)
    print(_warning(removal), file=sys.stderr)
    if not options.yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("nobody is here to ask whether to remove it.", "Add --yes.")
        print("Remove it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("slipstream: it stays.", file=sys.stderr)
            return 1
    removed = manager.remove(removal.model.name, options.now)
    if options.now:
        print(f"{removed.name} is gone; {models_words.size(removed.freed)} freed.")
    else:
        print(f"{removed.name} is removed. Bring it back: slipstream models undo; free its room: models rm --now")
    return 0


def _warning(removal: Removal) -> str:
    """What goes with a model."""
    frees = f"frees {models_words.size(removal.frees)}" if removal.frees else "frees nothing: it is a link"
    text = f"{removal.model.name}: {frees}"
    if removal.chats:
        titles = ", ".join(f"“{one_line(title)}”" for title in removal.chats[:_SHOWN])
        more = f" and {len(removal.chats) - _SHOWN} more" if len(removal.chats) > _SHOWN else ""
        text += f"; it wrote in {titles}{more}, which stay and go on with another model"
    return text + "."
