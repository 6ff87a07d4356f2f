"""``slipstream drafters``: the choice between its commands."""

from __future__ import annotations

import argparse

from slipstream.app.paths import Paths


def drafters(options: argparse.Namespace) -> int:
    """Runs the command that is asked for.

    Args:
        options: as :func:`slipstream.app.drafters.options.add_drafters` describes them.

    Returns:
        The exit code: 0, or 130 if it was interrupted.

    Raises:
        SlipstreamError: If it cannot be done.
    """
    paths = Paths.default()
    match options.drafters_command:
        case "train":
            from slipstream.app.drafters.train import train

            return train(options, paths)
        case "import":
            from slipstream.app.drafters.published import import_published

            return import_published(options, paths)
        case "off" | "on" as way:
            from slipstream.app.drafters.switching import switch_drafter

            return switch_drafter(options, paths, off=way == "off")
        case "index":
            from slipstream.app.drafters.index import index

            return index(options, paths)
    from slipstream.app.drafters.table import table

    print(table(options.model, paths))
    return 0
