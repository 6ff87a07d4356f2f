"""What parts ``drafters`` and ``check`` write: which drafters, on which prompts, how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.bench.prompts import PromptSet

ALL: Final = "all"
"""Stands for every method that the engine lists."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Replies to be written.

    Attributes:
        names: Drafters; ``ALL`` stands for those of the engine's list.
        sets: Kinds of text and their prompts.
        temperatures: Of the sampling.
        seeds: Each prompt is replied to once with each; at temperature 0, where they change nothing, with the first.
            Part topics replays its text at least once for each.
        tokens: Most tokens of a reply.
        typical: Threshold of typical acceptance, which changes the text; None for the exact rule.
    """

    names: Sequence[str]
    sets: Sequence[PromptSet]
    temperatures: Sequence[float] = (0.0, 0.8)
    seeds: Sequence[int] = (1,)
    tokens: int = 160
    typical: float | None = None
