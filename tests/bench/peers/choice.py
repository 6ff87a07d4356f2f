"""Which other engines are measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.peers.engines import ENGINES

from slipstream.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """Other engines."""

    # names of ``ENGINES``; one may be followed by a colon and one of its kinds of drafting
    names: tuple[str, ...] = tuple(ENGINES)
    python: str = sys.executable  # the interpreter that has the packages of those that did not come with slipstream

    @staticmethod
    def of(names: Sequence[str], python: str | None) -> PeerChoice:
        """Reads what was asked for; all engines where none was named, or one of the names is "all".

        Raises:
            UsageError: If there is no such engine, or it has no such kind of drafting.
        """
        for name in names:
            engine, _, kind = name.partition(":")
            if name != "all" and engine not in ENGINES:
                raise UsageError(f"there is no engine {engine!r} to measure.", f"Known: {', '.join(ENGINES)}, or all.")
            if kind and kind not in ENGINES[engine].groups:
                known = ", ".join(f"{engine}:{each}" for each in ENGINES[engine].groups)
                raise UsageError(f"{engine} has no {kind!r} to measure.", f"Known: {known}, or {engine} for all of it.")
        chosen = tuple(ENGINES) if not names or "all" in names else tuple(dict.fromkeys(names))
        return PeerChoice(chosen, os.path.expanduser(python) if python else sys.executable)
