"""What is known on this machine of the drafters of a model; ``looking`` finds it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # reading GGUF files loads much more than a screen needs
    from slipstream.app.drafters.heads_file import HeadsFile

_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Standing:
    """The drafters of one model on this machine.

    Attributes:
        heads: Files of trained heads, those for other models too.
        in_chats: Speed over plain decoding by drafter, over the newest replies that measured it.
        learnt: The same as the autopilot's records have it.
        benched: The same as the newest kept benchmark of the model has it, the mean over its kinds of text.
        costs: Cost of a pass over so many rows in passes over one row.
        left_out: Drafters that the autopilot leaves out.
        documents: Chats and files that are indexed for models of this vocabulary.
        tokens: Their tokens.
        index_on: Whether text may be indexed and drafted from.
        trains: Whether heads can be trained here: torch is installed.
        trouble: What could not be found out, in words; empty if nothing.
    """

    heads: tuple[HeadsFile, ...] = ()
    in_chats: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    learnt: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    benched: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    costs: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    left_out: frozenset[str] = frozenset()
    documents: int = 0
    tokens: int = 0
    index_on: bool = True
    trains: bool = True
    trouble: str = ""

    def gain(self, drafter: str) -> float | None:
        """Speed over plain decoding here: as chats tell, else the benchmark, else the autopilot; None if none."""
        return next((found[drafter] for found in (self.in_chats, self.benched, self.learnt) if drafter in found), None)

    def of(self, drafter: str) -> list[HeadsFile]:
        """The files of a method; those that serve the model first."""
        return sorted((file for file in self.heads if file.method == drafter), key=lambda file: bool(file.why_not))
