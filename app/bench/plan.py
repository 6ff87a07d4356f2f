"""The plan of a benchmark: drafters, prompts and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.bench import LIMIT
from slipstream.app.bench.prompts import PromptSet

ALL: Final = "all"  # all drafters of the engine's list


@dataclass(frozen=True, slots=True)
class Plan:
    """Replies to be written."""

    names: Sequence[str]  # drafters, or ``ALL``
    sets: Sequence[PromptSet]  # kinds of text and their prompts
    temperatures: Sequence[float] = (0.0, 0.8)
    seeds: Sequence[int] = (1,)  # each prompt gets a reply with each seed; at temperature 0 only with the first
    tokens: int = 160  # maximum tokens of a reply
    typical: float | None = None  # threshold of typical acceptance, which changes the text; None for the exact rule


@dataclass(frozen=True, slots=True)
class Settings:
    """The default amount of measurement."""

    limit: int = LIMIT  # maximum prompts of a set; 0 for all
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seeds: int = 1  # number of seeds for each prompt
    reply: int = 160  # maximum tokens of a reply
    drafter_steps: int = 64  # tokens to write when measuring each drafter's memory; 0 skips that

    @staticmethod
    def brief() -> Settings:
        """Smaller amounts, for slow models."""
        return Settings(limit=2, temperatures=(0.8,), reply=64, drafter_steps=0)
