"""What a replayed change of topic says: who was best for each stretch, and when the autopilot chose so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.bench.replay import Replayed

from slipstream.app.protocol.requests import AUTO

AS_GOOD: Final = 0.03
"""Choices whose speed is no further below the best one's count as best too: timing tells them apart no better."""


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """One stretch of the text."""

    name: str  # what it is
    tokens: int  # its length
    # tokens a second of every fixed choice, plain decoding ("none") among them; the median over the rounds
    rates: dict[str, float]
    best: str  # the fixed choice with the highest rate, known only afterwards
    as_good: list[str]  # the choices that are as good: the best, and those within 3 % of it
    auto_rate: float  # the autopilot's tokens a second
    # steps from the start of the stretch until the autopilot first chose one of those, round by round: 0 if it did at
    # once, None if it never did. What it only tried is no choice
    steps_until: list[int | None]
    share: float  # share of the autopilot's steps there at which it had chosen one of those


def topic_figures(
    sizes: Sequence[tuple[str, int]], played: Mapping[str, Sequence[Sequence[Replayed]]]
) -> list[TopicFigures]:
    """Compares the autopilot with each fixed choice, stretch by stretch.

    A step belongs to the stretch that its first token stands in.

    Args:
        sizes: Name and tokens of each stretch.
        played: For each choice, and ``AUTO``, the steps of each round.
    """
    found, start = [], 0
    for name, size in sizes:
        here = {
            drafter: [[step for step in steps if start <= step.start < start + size] for steps in rounds]
            for drafter, rounds in played.items()
        }
        rates = {drafter: median(map(_rate, rounds)) for drafter, rounds in here.items()}
        auto_rate = rates.pop(AUTO)
        best = max(rates, key=lambda drafter: rates[drafter])
        as_good = [drafter for drafter, rate in rates.items() if rate >= (1 - AS_GOOD) * rates[best]]
        hits = [[step.choice in as_good for step in steps] for steps in here[AUTO]]
        found.append(
            TopicFigures(
                name=name,
                tokens=size,
                rates=rates,
                best=best,
                as_good=as_good,
                auto_rate=auto_rate,
                steps_until=[flags.index(True) if True in flags else None for flags in hits],
                share=sum(map(sum, hits)) / max(1, sum(map(len, hits))),
            )
        )
        start += size
    return found


def _rate(steps: Sequence[Replayed]) -> float:
    """Tokens a second; 0 where a step from before ran through the whole stretch."""
    milliseconds = sum(step.milliseconds for step in steps)
    return 1e3 * sum(step.tokens for step in steps) / milliseconds if milliseconds else 0.0
