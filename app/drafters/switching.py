"""``slipstream drafters off`` and ``on``: which drafters the autopilot may choose."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream.app.drafters.left_out import leave_out
from slipstream.app.model_choice import choose
from slipstream.app.paths import Paths
from slipstream.app.safe_text import one_line
from slipstream.drafters.none import Plain
from slipstream.drafters.registry import METHODS
from slipstream.models.errors import UsageError
from slipstream.models.gguf import read_header


def switch_drafter(options: argparse.Namespace, paths: Paths, off: bool) -> int:
    """Has the autopilot leave a drafter of a model out, or no longer.

    Args:
        options: ``name``, ``model``.
        paths: Where things are kept.
        off: Which way.

    Returns:
        The exit code, 0.

    Raises:
        UsageError: If there is no such drafter or model, or the file of choices is broken.
        SlipstreamError: If it cannot be kept.
    """
    names = [name for name in METHODS if name != Plain.name]
    if options.name not in names:
        raise UsageError(
            f"{options.name!r} is no drafter that could be switched.", f"Those that can: {', '.join(names)}."
        )
    header = read_header(Path(choose(paths, options.model).model))
    leave_out(paths.drafters, header.fingerprint, options.name, off)
    print(f"auto {'leaves' if off else 'may choose'} {options.name}{' out' if off else ''} for {one_line(header.name)}")
    return 0
