"""Variants of an engine, and the fastest of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.peers.process import PeerError

from slipstream.models.types import Token

_TEXT = frozenset({"lookup", "lookahead", "recycle", "retrieval", "prompt-lookup"})
"""Drafters that copy or remember text, ours and llama-cpp-python's; llama.cpp's own begin with ngram."""

Settings = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run an engine."""

    engine: str  # the engine's name
    drafter: str  # who drafts, by the engine's own name; "none" for plain decoding
    settings: Settings = ()  # what is set of it

    @property
    def kind(self) -> str:
        """What drafts: nothing ("plain"), a draft model ("draft"), copied text ("text"), or something else."""
        names = set(re.split(r"[+|]", self.drafter))
        if names == {"none"}:
            return "plain"
        if names == {"draft"}:
            return "draft"
        copies = names <= _TEXT or all(name.startswith("ngram-") for name in names)
        return "text" if copies else "other"

    def __str__(self) -> str:
        """As one would say it."""
        values = ", ".join(f"{name} {value:g}" for name, value in self.settings)
        return f"{self.engine} {self.drafter}" + (f" ({values})" if values else "")


@dataclass(frozen=True, slots=True)
class Timing:
    """One reply."""

    tokens: int  # tokens that were timed
    seconds: float  # time of them; reading the prompt is left out
    wall: float  # seconds of the whole request, the prompt read from its start
    text: str  # the reply
    drafted: int | None  # tokens drafted; None where the engine does not say
    accepted: int | None  # tokens of them that were accepted

    @staticmethod
    def of(answer: Mapping[str, Any], engine: str) -> Timing:
        """Reads an engine's answer.

        Raises:
            PeerError: If it makes no sense.
        """
        try:
            drafted, accepted = answer["drafted"], answer["accepted"]
            timing = Timing(
                tokens=int(answer["tokens"]),
                seconds=float(answer["seconds"]),
                wall=float(answer["wall"]),
                text=str(answer["text"]),
                drafted=None if drafted is None else int(drafted),
                accepted=None if accepted is None else int(accepted),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"{engine} gave no timings: {type(error).__name__}: {error}.") from error
        if timing.tokens < 0 or not 0 <= timing.seconds < math.inf:
            raise PeerError(f"{engine} gave no timings: {timing.tokens} tokens in {timing.seconds} s.")
        return timing


def rate(timings: Sequence[Timing]) -> float:
    """Tokens a second over several replies; 0 where nothing was timed."""
    seconds = sum(timing.seconds for timing in timings)
    return sum(timing.tokens for timing in timings) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Tried:
    """One variant that was tried."""

    engine: str  # the engine's name
    drafter: str  # the name of the drafter
    settings: dict[str, float]  # what was set of it
    tok_per_s: float  # tokens a second
    replies: int  # replies that it wrote before others were faster


class Sweep:
    """Finds the fastest of some variants by halving: the slower half of them leaves after each round of prompts.

    "Successive halving" (Jamieson and Talwalkar, arXiv 1502.07943). Only replies to the same prompts are compared, and
    those to one prompt are written one after the other.

    Attributes:
        refused: Variants that the engine refused, or died of, and why.
    """

    def __init__(
        self, variants: Sequence[Variant], reply: Callable[[Variant, Sequence[Token]], Timing], prompts: int = 3
    ) -> None:
        """Begins.

        Args:
            variants: All of them.
            reply: Has a variant write; raises PeerError if it cannot.
            prompts: Prompts of a round.
        """
        self._left, self._reply, self._size = list(variants), reply, prompts
        self._timings: dict[Variant, list[Timing]] = {variant: [] for variant in variants}
        self.refused: dict[Variant, str] = {}

    def run(self, prompts: Sequence[Sequence[Token]], tell: Callable[[str], None]) -> Variant | None:
        """Returns the fastest; None if none could write. A single one is only asked whether it can.

        Args:
            prompts: There must be one at least; they come round again where rounds need more.
            tell: Hears how far it is.
        """
        count = 0
        while self._left and not (len(self._left) == 1 and count):
            size = 1 if len(self._left) == 1 else min(self._size, len(prompts))
            for _ in range(size):
                self._round(prompts[count % len(prompts)], f"prompt {count % len(prompts) + 1}", tell)
                count += 1
            ranked = sorted(self._left, key=lambda variant: -rate(self._timings[variant]))
            self._left = ranked[: (len(ranked) + 1) // 2]
        return self._left[0] if self._left else None

    def tried(self) -> list[Tried]:
        """All that wrote, as they were listed."""
        return [
            Tried(variant.engine, variant.drafter, dict(variant.settings), rate(timings), len(timings))
            for variant, timings in self._timings.items()
            if timings
        ]

    def _round(self, prompt: Sequence[Token], name: str, tell: Callable[[str], None]) -> None:
        for variant in list(self._left):
            tell(f"peers: trying {variant}, {name}")
            try:
                self._timings[variant].append(self._reply(variant, prompt))
            except PeerError as error:
                self.refused[variant] = error.title
                self._left.remove(variant)
