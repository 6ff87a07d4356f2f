"""Model files that a command loads in its own process, and what is done before the first time."""

from __future__ import annotations

import sys
from pathlib import Path

from slipstream.app.model_choice import PROBED
from slipstream.app.paths import Paths
from slipstream.models.probe import probe_once
from slipstream.models.probe_record import ProbeRecord
from slipstream.models.runtime.library import built


def try_first(path: Path, paths: Paths) -> None:
    """Tries a model file in a process of its own before its first use, as the engine does (``Load.probed``).

    Raises:
        SlipstreamError: If llama.cpp crashes on it, hangs, or refuses it.
    """
    probe_once([path], ProbeRecord(paths.derived / PROBED, built()), say)


def say() -> None:
    """Tells on standard error that a file is being checked."""
    print("checking the file before its first use", file=sys.stderr)
