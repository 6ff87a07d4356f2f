"""What a benchmark tells while it measures: the rows so far and the time that is left, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, Final

from slipstream.app.bench.figures import DrafterFigures, Noise
from slipstream.app.bench.intervals import Ratio

EVERY: Final = 0.25
"""Seconds between two updates of a reply under way."""


@dataclass(frozen=True, slots=True)
class Update:
    """How far a benchmark is."""

    model: str
    drafters: tuple[str, ...]  # those that are compared, plain decoding not among them
    drafter: str  # the one that writes now; empty while none does
    kind: str  # the kind of text that is written now
    share: float  # how far it is by time, 0 to 1
    left: float | None  # seconds that are left; None while that is not known
    rows: tuple[DrafterFigures, ...]  # those that changed, with all that was measured for them
    noise: Noise  # how far the figures so far can be trusted


def encoded(update: Update) -> dict[str, Any]:
    """An update as an object of JSON."""
    return {"measuring": asdict(update)}


def decoded(found: Mapping[str, Any]) -> Update:
    """Reads ``encoded`` back.

    Raises:
        LookupError: If it is no such object.
        TypeError: Likewise.
    """
    fields = found["measuring"]
    rows = tuple(row_of(row) for row in fields["rows"])
    return Update(**{**fields, "drafters": tuple(fields["drafters"]), "rows": rows, "noise": Noise(**fields["noise"])})


def row_of(found: Mapping[str, Any]) -> DrafterFigures:
    """Reads a row back from JSON.

    Raises:
        LookupError: If it is no such object.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    return DrafterFigures(**{**found, "speedup": maybe_ratio(found["speedup"])})


def ratio_of(found: Mapping[str, Any]) -> Ratio:
    """Reads a ratio back from JSON; raises as ``row_of`` does."""
    low, high = found["low"], found["high"]
    return Ratio(float(found["value"]), None if low is None else float(low), None if high is None else float(high))


def maybe_ratio(found: Mapping[str, Any] | None) -> Ratio | None:
    """The same for a ratio that may not be known."""
    return None if found is None else ratio_of(found)


class Measuring:
    """A benchmark under way, put together from its updates.

    Attributes:
        update: The newest; None before the first.
    """

    def __init__(self) -> None:
        self.update: Update | None = None
        self._rows: dict[tuple[str, float, str], DrafterFigures] = {}
        self._heard = 0.0

    def take(self, update: Update) -> None:
        self.update, self._heard = update, monotonic()
        self._rows |= {(row.kind, row.temperature, row.drafter): row for row in update.rows}

    @property
    def rows(self) -> Sequence[DrafterFigures]:
        """The rows so far, those of one kind and temperature together, in the order in which they were first told."""
        groups = list(dict.fromkeys((kind, temperature) for kind, temperature, _ in self._rows))
        return [row for group in groups for key, row in self._rows.items() if key[:2] == group]

    @property
    def left(self) -> float | None:
        """Seconds that are left now: the time since the newest update has passed."""
        if self.update is None or self.update.left is None:
            return None
        return max(0.0, self.update.left - (monotonic() - self._heard))
