"""What the parts of the benchmark write: which drafters, on which prompts, how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.bench import LIMIT
from slipstream.app.bench.prompts import PromptSet

ALL: Final = "all"  # stands for every method that the engine lists


@dataclass(frozen=True, slots=True)
class Plan:
    """Replies to be written."""

    names: Sequence[str]  # drafters; ``ALL`` stands for those of the engine's list
    sets: Sequence[PromptSet]  # kinds of text and their prompts
    temperatures: Sequence[float] = (0.0, 0.8)  # of the sampling
    # each prompt is replied to once with each; at temperature 0, where they change nothing, with the first
    seeds: Sequence[int] = (1,)
    tokens: int = 160  # most tokens of a reply
    typical: float | None = None  # threshold of typical acceptance, which changes the text; None for the exact rule


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured by default."""

    limit: int = LIMIT  # most prompts of a set; 0 for all
    temperatures: tuple[float, ...] = (0.0, 0.8)  # temperatures
    seeds: int = 1  # how many seeds each prompt is replied to with
    reply: int = 160  # most tokens of a reply
    drafter_steps: int = 64  # tokens that are written to measure the memory of each drafter; 0 for not at all

    @staticmethod
    def brief() -> Settings:
        """Less of everything, for models whose every token takes long."""
        return Settings(limit=2, temperatures=(0.8,), reply=64, drafter_steps=0)
