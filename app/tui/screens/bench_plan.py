"""A benchmark that is asked for: its size, how long it may take, and the command that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

SIZES: Final = MappingProxyType({"small": (2, 48), "medium": (4, 96), "large": (8, 160)})
"""Prompts of each set, and most tokens of a reply."""
GREEDY, SAMPLED = 0.0, 0.8
_START: Final = 5.0  # seconds to load and to warm up
_BESIDE: Final = 1.3  # of the tokens' time, for reading prompts and for drafting


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure.

    Attributes:
        prompts: Names of built-in sets, and a file.
        drafters: Names.
        temperatures: Of the sampling; 0 takes the likeliest token.
        size: One of ``SIZES``.
    """

    prompts: tuple[str, ...] = ("chat", "story", "copy")
    drafters: tuple[str, ...] = ()
    temperatures: tuple[float, ...] = (SAMPLED,)
    size: str = "small"

    @property
    def lacks(self) -> str:
        """What is missing, in words; empty if nothing is."""
        if not self.prompts:
            return "Choose some prompts."
        if not self.drafters:
            return "Choose at least one drafter."
        return "" if self.temperatures else "Choose how tokens are drawn."

    def seconds(self, plain_tok_per_s: float) -> float:
        """About how long it takes: every drafter's reply stands between two plain ones."""
        prompts, tokens = SIZES[self.size]
        replies = prompts * len(self.prompts) * len(self.temperatures) * (2 * len(self.drafters) + 1)
        return _START + _BESIDE * replies * tokens / max(plain_tok_per_s, 0.1)

    def arguments(self, model: str, more: Sequence[str], written: Path) -> list[str]:
        """What follows ``slipstream`` on the command line.

        Args:
            model: The model, as ``-m`` takes it.
            more: Its draft model and heads.
            written: The file for the figures.
        """
        prompts, tokens = SIZES[self.size]
        sets = [f"--prompts={name}" for name in self.prompts]
        temperatures = ",".join(f"{each:g}" for each in self.temperatures)
        measured = ["--drafters", ",".join(self.drafters), *sets, "--temp", temperatures]
        sized = ["--limit", str(prompts), "--tokens", str(tokens), "--no-memory"]
        return ["bench", "-m", model, *more, *measured, *sized, "--json", str(written)]


def about(seconds: float) -> str:
    """A rough time in words."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
