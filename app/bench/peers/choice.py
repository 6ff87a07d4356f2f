"""Which other engines are measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.app.bench.peers.engines import ENGINES
from slipstream.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """Other engines.

    Attributes:
        names: Names of ``ENGINES``.
        python: The interpreter that has the packages of those that did not come with slipstream.
    """

    names: tuple[str, ...] = tuple(ENGINES)
    python: str = sys.executable

    @staticmethod
    def of(names: Sequence[str], python: str | None) -> PeerChoice:
        """Reads what was asked for; all engines where none was named, or one of the names is "all".

        Raises:
            UsageError: If there is no such engine.
        """
        unknown = [name for name in names if name not in ENGINES and name != "all"]
        if unknown:
            raise UsageError(f"there is no engine {unknown[0]!r} to measure.", f"Known: {', '.join(ENGINES)}, or all.")
        chosen = tuple(ENGINES) if not names or "all" in names else tuple(dict.fromkeys(names))
        return PeerChoice(chosen, os.path.expanduser(python) if python else sys.executable)
