"""What the parts of the benchmark write: which drafters, on which prompts, how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.bench import LIMIT
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
        tokens: Most tokens of a reply.
        typical: Threshold of typical acceptance, which changes the text; None for the exact rule.
    """

    names: Sequence[str]
    sets: Sequence[PromptSet]
    temperatures: Sequence[float] = (0.0, 0.8)
    seeds: Sequence[int] = (1,)
    tokens: int = 160
    typical: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured by default.

    Attributes:
        limit: Most prompts of a set; 0 for all.
        temperatures: Temperatures.
        seeds: How many seeds each prompt is replied to with.
        reply: Most tokens of a reply.
        drafter_steps: Tokens that are written to measure the memory of each drafter; 0 for not at all.
    """

    limit: int = LIMIT
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seeds: int = 1
    reply: int = 160
    drafter_steps: int = 64

    @staticmethod
    def brief() -> Settings:
        """Less of everything, for models whose every token takes long."""
        return Settings(limit=2, temperatures=(0.8,), reply=64, drafter_steps=0)
