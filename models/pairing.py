"""Which drafters serve a model: on this machine, in the catalogue, and in the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.models.catalog import CatalogFile
from slipstream.models.store_types import Installed

Source = Literal["in the model", "trained for it", "catalogue", "same vocabulary", "other vocabulary"]
"""Why a drafter is offered."""


@dataclass(frozen=True, slots=True)
class PairOffer:
    """A drafter for a model, or the reason why it cannot be one.

    Attributes:
        name: What people call the drafter.
        method: The drafting method, such as ``draft``, ``mtp`` or ``eagle3``.
        source: Why it is offered.
        drafter: The model on this machine; None where the drafter is in the model itself, is a file of heads, or must
            be fetched.
        path: Its file on this machine; None where it is in the model itself or must be fetched.
        fetch: What to download, where it is not here.
        size: Bytes of its file; 0 if not known or in the model itself.
        why_not: Why it cannot serve the model, exactly; empty if it can.
        instead: Where it cannot: what would.
        note: What is worth knowing of the pair: who says that it works, what speaks against it.
        gain: Speed over plain decoding as measured on this machine; None if it was not.
    """

    name: str
    method: str
    source: Source
    drafter: Installed | None = None
    path: str | None = None
    fetch: CatalogFile | None = None
    size: int = 0
    why_not: str = ""
    instead: str = ""
    note: str = ""
    gain: float | None = None

    @property
    def ready(self) -> bool:
        """Whether it can be used right now."""
        return not self.why_not and self.fetch is None
