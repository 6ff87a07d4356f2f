"""What is done, and told, before a model file is used for the first time."""

from __future__ import annotations

import sys
from pathlib import Path

from slipstream.app.model_choice import PROBED
from slipstream.app.paths import Paths


def try_first(path: Path, paths: Paths) -> None:
    """Tries a model file that a command loads itself in another process, as the engine does (``Load.probed``).

    Raises:
        SlipstreamError: If llama.cpp crashes on it, hangs, or refuses it.
    """
    from slipstream.models.probe import probe_once
    from slipstream.models.probe_record import ProbeRecord
    from slipstream.models.runtime.library import built  # it loads llama.cpp

    probe_once([path], ProbeRecord(paths.derived / PROBED, built()), tell_check)


def tell_check() -> None:
    """Tells on standard error that a file is being checked, so that nobody wonders what takes so long."""
    print("checking the file before its first use", file=sys.stderr)
