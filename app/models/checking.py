"""``slipstream models verify``: whether models are what they were."""

from __future__ import annotations

import argparse
import sys

from slipstream.app.models.answers import Bar, print_json
from slipstream.app.models.manager import ModelManager
from slipstream.app.safe_text import one_line
from slipstream.models.store_types import Checked


def verify(manager: ModelManager, options: argparse.Namespace) -> int:
    """Reads every byte of a model, or of all that are ours.

    Returns:
        The exit code: 0, 1 if one is wrong, 130 if it was interrupted.

    Raises:
        UsageError: If there is no such model.
    """
    names = [options.name] if options.name else [m.name for m in manager.installed() if m.origin == "ours"]
    checked: list[Checked] = []
    try:
        for name in names:
            with Bar(f"checking {one_line(name)}") as bar:
                found = manager.verify(name, bar.bytes, bar.cancelled)
            checked.append(found)
            if not options.json:
                print(_verdict(found), flush=True)
    except KeyboardInterrupt:
        print("slipstream: stopped; nothing was changed.", file=sys.stderr)
        return 130
    if options.json:
        print_json(checked)
    elif not checked:
        print("there are no models of slipstream's own to check.", file=sys.stderr)
    return int(any(each.problem for each in checked))


def _verdict(checked: Checked) -> str:
    name = one_line(checked.model.name)
    if checked.problem:
        return f"{name}: wrong. {one_line(f'{checked.problem} {checked.hint}')}"
    if all(checked.expected):
        return f"{name}: right, every byte as it was published."
    if checked.model.origin == "ours":
        return f"{name}: readable; its hash was not known and is kept now, so that the next check can compare."
    return f"{name}: readable; nobody says what its hash should be."
