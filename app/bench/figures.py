"""The figures of a benchmark of drafters; the chat shows them without loading an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slipstream.app.bench.intervals import Interval
from slipstream.app.protocol.requests import PLAIN
from slipstream.app.speed import LEAST_TOKENS

ALL_KINDS: Final = "all texts"
"""The name of a row over all kinds of text."""


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """One drafter on one kind of text at one temperature; sums are over prompts, their turns and seeds."""

    drafter: str  # its name; "none" for plain decoding itself
    kind: str  # the kind of text; ``ALL_KINDS`` for all of them together
    temperature: float  # of the sampling
    tok_per_s: float  # tokens per second, without prefill
    # the speed divided by that of the adjacent plain replies, with an interval, see ``intervals.speedup``; None if too
    # few tokens were written
    speedup: Interval | None
    by_prompt: list[float | None]  # the speed-up of each prompt, in the order of the set
    tokens_per_step: float  # tokens emitted per step
    acceptance: float | None  # accepted over drafted tokens; None if nothing was drafted
    by_depth: list[float | None]  # acceptance at each depth from 1; None at a depth that no step reached
    phases: dict[str, float]  # milliseconds per step: draft, evaluate, accept, commit, and the rest between steps
    # median milliseconds to the first token; the prompt is mostly in the target's cache already, but not in a drafter's
    # own cache
    first_token_ms: float
    tokens: int  # tokens emitted
    equal_texts: int  # replies that were the same as plain decoding's, token for token
    texts: int  # replies
    # share of tokens that complete a run of four tokens seen earlier in the same reply; None in older stored reports
    repeated: float | None = None

    @property
    def idle(self) -> bool:
        """Whether it drafted nothing, so that its speed-up is noise."""
        return self.acceptance is None

    @property
    def gain(self) -> Interval | None:
        """The speed-up if it is meaningful: something was drafted, and enough tokens were written."""
        return None if self.idle else self.speedup

    @property
    def speedup_text(self) -> str:
        """The speed-up with its interval, or why there is none."""
        if self.drafter != PLAIN and self.idle:
            return "guessed nothing"
        return self.speedup.text() if self.speedup else f"fewer than {LEAST_TOKENS} tokens"


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a measurement."""

    spread: float = 1.0  # median ratio of the speeds of two successive plain replies to one prompt, 1 or more
    busy: float = 0.0  # share of plain decoding's replies that other programs disturbed

    @property
    def was_busy(self) -> bool:
        """Whether other programs disturbed enough of the replies to slow the figures down."""
        return self.busy >= _BUSY_SHARE

    def remarks(self) -> list[str]:
        """Sentences for the user; none without much noise."""
        remarks = []
        if self.was_busy:
            remarks.append("The machine was busy: other programs slowed these figures down.")
        if self.spread >= DISAGREE:
            remarks.append(f"Two runs without a drafter differ by {self.spread:.2f}x: smaller gains mean nothing.")
        return remarks


QUIET: Final = Noise()  # no noise
DISAGREE: Final = 1.15  # minimum ``Noise.spread`` that is reported
_BUSY_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class BestFixed:
    """The drafter that was fastest on one kind of text at one temperature, chosen with hindsight, and the autopilot."""

    kind: str  # the kind of text, or ``ALL_KINDS``
    temperature: float  # of the sampling
    drafter: str  # the fixed choice with the best speed-up, also a combination or "none"
    speedup: Interval  # its speed over plain decoding's
    auto: Interval | None  # the autopilot's speed over plain decoding's; None if it was not measured
    # the autopilot's speed over the best fixed choice's, see ``intervals.advantage``; slightly too low, since the best
    # fixed choice was chosen by the same figures
    auto_over_best: Interval | None


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """The result of a benchmark of drafters."""

    model: str
    promise: str  # the promise about equal texts that was made at load
    rows: list[DrafterFigures]  # a row for each kind of text, temperature and drafter; plain decoding's first
    best: list[BestFixed]  # the best fixed choice for each kind of text and temperature
    unusable: dict[str, str]  # drafters that cannot serve the model, and why
    prompts: dict[str, int]  # prompts of each kind of text that were replied to
    too_long: dict[str, int]  # prompts of each kind of text with a turn that does not fit the context
    seeds: list[int]  # seeds with which each prompt was replied to
    reply: int  # maximum tokens of a reply
    typical: float | None  # threshold of typical acceptance, which changes the text; None if it was off
    equal_texts: int  # replies that were the same as plain decoding's
    texts: int  # replies written with a drafter
    # peak memory of a process that loads and uses this drafter alone; None if it could not be measured
    memory_mb: dict[str, float | None]
    noise: Noise = QUIET
    stopped: bool = False  # whether it was stopped before its end

    @property
    def overall(self) -> list[DrafterFigures]:
        """The rows over all kinds of text, at the last temperature: one row per drafter."""
        last = self.best[-1] if self.best else None
        return [row for row in self.rows if last and (row.kind, row.temperature) == (last.kind, last.temperature)]
