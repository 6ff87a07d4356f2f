"""The progress of a running benchmark, and its conversion to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, Final

from slipstream.app.bench.figures import DrafterFigures, Noise
from slipstream.app.bench.intervals import Interval

EVERY: Final = 0.25
"""Seconds between two updates during a reply."""


@dataclass(frozen=True, slots=True)
class Update:
    """The progress of a benchmark."""

    model: str
    drafters: tuple[str, ...]  # the compared drafters, without plain decoding
    drafter: str  # the drafter of the current reply; empty without one
    kind: str  # its kind of text
    share: float  # elapsed share of the time, 0 to 1
    left: float | None  # seconds left; None if unknown
    rows: tuple[DrafterFigures, ...]  # the rows that changed since the last update
    noise: Noise  # the noise measured so far


def encoded(update: Update) -> dict[str, Any]:
    return {"measuring": asdict(update)}


def decoded(found: Mapping[str, Any]) -> Update:
    """Reads an update that ``encoded`` wrote.

    Raises:
        LookupError: If the object has another form.
        TypeError: Likewise.
    """
    fields = found["measuring"]
    rows = tuple(row_of(row) for row in fields["rows"])
    return Update(**{**fields, "drafters": tuple(fields["drafters"]), "rows": rows, "noise": Noise(**fields["noise"])})


def row_of(found: Mapping[str, Any]) -> DrafterFigures:
    """Reads a row back from JSON.

    Raises:
        LookupError: If the object has another form.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    return DrafterFigures(**{**found, "speedup": maybe_ratio(found["speedup"])})


def ratio_of(found: Mapping[str, Any]) -> Interval:
    """Reads a ratio back from JSON; raises as ``row_of`` does."""
    low, high = found["low"], found["high"]
    return Interval(float(found["value"]), None if low is None else float(low), None if high is None else float(high))


def maybe_ratio(found: Mapping[str, Any] | None) -> Interval | None:
    """``ratio_of`` for a ratio that may be None."""
    return None if found is None else ratio_of(found)


class Measuring:
    """The state of a running benchmark, from its updates.

    Attributes:
        update: The newest update; None before the first.
    """

    def __init__(self) -> None:
        self.update: Update | None = None
        self._rows: dict[tuple[str, float, str], DrafterFigures] = {}
        self._received = 0.0

    def take(self, update: Update) -> None:
        self.update, self._received = update, monotonic()
        self._rows |= {(row.kind, row.temperature, row.drafter): row for row in update.rows}

    @property
    def rows(self) -> Sequence[DrafterFigures]:
        """The rows so far, grouped by kind and temperature, in order of their first appearance."""
        groups = list(dict.fromkeys((kind, temperature) for kind, temperature, _ in self._rows))
        return [row for group in groups for key, row in self._rows.items() if key[:2] == group]

    @property
    def left(self) -> float | None:
        """Seconds left, less the time since the newest update."""
        if self.update is None or self.update.left is None:
            return None
        return max(0.0, self.update.left - (monotonic() - self._received))
