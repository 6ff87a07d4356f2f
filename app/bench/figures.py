"""What part ``drafters`` found: figures alone, which the chat shows without loading an engine."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.app.bench.intervals import Ratio
from slipstream.app.speed import LEAST_TOKENS


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """One drafter on one kind of text at one temperature; sums are over prompts, their turns and seeds.

    Attributes:
        drafter: Its name; "none" for plain decoding itself.
        kind: The kind of text.
        temperature: Of the sampling.
        tok_per_s: Tokens a second, the prompts' reading left out.
        speedup: That over plain decoding's next to it in time, and its interval; see ``intervals.speedup``. None where
            too few tokens were written.
        by_prompt: The same for each prompt alone, in the order of the set.
        tokens_per_step: Tokens emitted a step.
        acceptance: Accepted over drafted tokens; None if nothing was drafted.
        by_depth: Acceptance at each depth from 1, None where no step got there.
        phases: Milliseconds a step: draft, evaluate, accept, commit, and the rest between steps.
        first_token_ms: Milliseconds to the first token, the median; the target has mostly read the prompt before, a
            drafter that reads it too has not.
        tokens: Tokens emitted.
        equal_texts: Replies that were the same as plain decoding's, token for token.
        texts: Replies.
        repeated: Share of their tokens that finish a run of four which stands earlier in the same reply; None in
            reports that were kept before it was measured.
    """

    drafter: str
    kind: str
    temperature: float
    tok_per_s: float
    speedup: Ratio | None
    by_prompt: list[float | None]
    tokens_per_step: float
    acceptance: float | None
    by_depth: list[float | None]
    phases: dict[str, float]
    first_token_ms: float
    tokens: int
    equal_texts: int
    texts: int
    repeated: float | None = None

    @property
    def idle(self) -> bool:
        """Whether it drafted nothing, so that its speed-up is noise."""
        return self.acceptance is None

    @property
    def speedup_text(self) -> str:
        """The speed-up with its interval, or why there is none."""
        return self.speedup.text() if self.speedup else f"fewer than {LEAST_TOKENS} tokens"


@dataclass(frozen=True, slots=True)
class BestFixed:
    """The drafter that was fastest on one kind of text at one temperature, known only afterwards, and the autopilot.

    Attributes:
        kind: The kind of text, or ``ALL_KINDS``.
        temperature: Of the sampling.
        drafter: The fixed choice with the best speed-up, joined ones and "none" among them.
        speedup: Its speed over plain decoding's.
        auto: The autopilot's speed over plain decoding's; None where it was not measured.
        auto_over_best: The autopilot's speed over the best fixed choice's, prompt by prompt; see
            ``intervals.advantage``. The best was chosen by the same figures, which favours it a little.
    """

    kind: str
    temperature: float
    drafter: str
    speedup: Ratio
    auto: Ratio | None
    auto_over_best: Ratio | None


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """What part ``drafters`` found.

    Attributes:
        model: The model's own name.
        promise: What loading it promised about equal texts.
        rows: A row for each kind of text, temperature and drafter; plain decoding's first.
        best: The best fixed choice for each kind of text and temperature.
        unusable: Drafters that cannot serve the model, and why.
        prompts: Prompts of each kind of text that were replied to.
        too_long: Prompts of each kind of text with a turn that does not fit the context.
        seeds: Seeds with which each prompt was replied to.
        reply: Most tokens of a reply.
        typical: Threshold of typical acceptance where it was on: then texts are not the target's own.
        equal_texts: Replies that were the same as plain decoding's.
        texts: Replies written with a drafter.
        memory_mb: Peak memory of a process that has only this drafter loaded and writes with it; None where it could
            not be measured.
        stopped: Whether it was stopped before its end.
    """

    model: str
    promise: str
    rows: list[DrafterFigures]
    best: list[BestFixed]
    unusable: dict[str, str]
    prompts: dict[str, int]
    too_long: dict[str, int]
    seeds: list[int]
    reply: int
    typical: float | None
    equal_texts: int
    texts: int
    memory_mb: dict[str, float | None]
    stopped: bool = False
