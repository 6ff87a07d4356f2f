"""What is said of a drafter for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from slipstream.models.catalog import CatalogFile, CatalogPair
from slipstream.models.store_types import Installed

Source = Literal["in the model", "trained for it", "catalogue", "same vocabulary", "sizes fit", "other vocabulary"]
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
        ratio: How many times as many parameters the model has; 0.0 if not known.
        why_not: Why it cannot serve the model, exactly; empty if it can.
        instead: Where it cannot: what would.
        note: What is worth knowing of the pair: who says that it works, what speaks against it.
        gain: Speed over plain decoding as measured on this machine; None if it was not.
    """

    name: str
    method: str
    source: Source
    drafter: Installed | None = None
    path: Path | None = None
    fetch: CatalogFile | None = None
    size: int = 0
    ratio: float = 0.0
    why_not: str = ""
    instead: str = ""
    note: str = ""
    gain: float | None = None

    @property
    def ready(self) -> bool:
        """Whether it can be used right now."""
        return not self.why_not and self.fetch is None

    @property
    def sound(self) -> bool:
        """Whether it may be chosen for a person who did not ask for it: nothing about it is a guess or a loss."""
        doubtful = self.source in ("sizes fit", "other vocabulary")
        return self.ready and not doubtful and (self.gain is None or self.gain > 1.0)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What drafters may be found in.

    Attributes:
        models: The models on this machine.
        heads: Method to file of the heads that were made for the model, as ``companions`` finds them.
        pairs: The pairs of the catalogue for the model.
        gains: Speed over plain decoding as measured on this machine, by method.
        reasons: Whether to find out where a vocabulary differs; without, models of other vocabularies are left out,
            which saves reading them.
    """

    models: Sequence[Installed] = ()
    heads: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    pairs: Sequence[CatalogPair] = ()
    gains: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    reasons: bool = True
