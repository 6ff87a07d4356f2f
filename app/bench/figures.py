"""What part ``drafters`` found, from replies to figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from slipstream.app.bench.intervals import Paired, Ratio, Work, advantage, speedup
from slipstream.app.engine.choice import PLAIN
from slipstream.app.engine.requests import AUTO

if TYPE_CHECKING:  # it loads the engine, which whoever shows figures does not need
    from slipstream.app.bench.turns import Written


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """One drafter on one kind of text at one temperature; sums are over prompts, their turns and seeds.

    Attributes:
        drafter: Its name; "none" for plain decoding itself.
        kind: The kind of text.
        temperature: Of the sampling.
        tok_per_s: Tokens a second, the prompts' reading left out.
        speedup: That over plain decoding's next to it in time, and its interval; see ``intervals.speedup``.
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
    """

    drafter: str
    kind: str
    temperature: float
    tok_per_s: float
    speedup: Ratio
    by_prompt: list[float]
    tokens_per_step: float
    acceptance: float | None
    by_depth: list[float | None]
    phases: dict[str, float]
    first_token_ms: float
    tokens: int
    equal_texts: int
    texts: int


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


@dataclass(slots=True)
class Cell:
    """What is summed for one row.

    Attributes:
        pairs: Per prompt: the sums of its replies and of the plain ones beside them.
        replies: All replies.
        equal: How many were plain decoding's, token for token.
    """

    pairs: dict[int, Paired] = field(default_factory=dict)
    replies: list[Written] = field(default_factory=list)
    equal: int = 0

    def add(self, prompt: int, written: Written, plain: Work, equal: bool) -> None:
        """Takes a reply, and what plain decoding took at that time."""
        pair = Paired(written.work, plain)
        self.pairs[prompt] = self.pairs[prompt] + pair if prompt in self.pairs else pair
        self.replies.append(written)
        self.equal += equal

    @property
    def by_prompt(self) -> list[Paired]:
        """The sums of each prompt, in the order of the set."""
        return [self.pairs[at] for at in sorted(self.pairs)]

    def figures(self, drafter: str, kind: str, temperature: float) -> DrafterFigures:
        """Sums up."""
        speeds = [written.done.speed for written in self.replies]
        drafted, steps = sum(speed.drafted for speed in speeds), sum(speed.steps for speed in speeds)
        tokens = sum(speed.tokens for speed in speeds)
        phases: dict[str, float] = {}
        for written in self.replies:
            for name, ms in written.done.phases.items():
                phases[name] = phases.get(name, 0.0) + ms * written.done.speed.steps / steps
        return DrafterFigures(
            drafter=drafter,
            kind=kind,
            temperature=temperature,
            tok_per_s=tokens / sum(written.work.seconds for written in self.replies),
            speedup=Ratio(1.0) if drafter == PLAIN else speedup(self.by_prompt),
            by_prompt=[pair.speedup for pair in self.by_prompt],
            tokens_per_step=tokens / steps,
            acceptance=sum(speed.accepted for speed in speeds) / drafted if drafted else None,
            by_depth=_by_depth([written.done.by_depth for written in self.replies]),
            phases=phases,
            first_token_ms=median(written.done.ttft_ms for written in self.replies),
            tokens=tokens,
            equal_texts=self.equal,
            texts=len(self.replies),
        )


ALL_KINDS: Final = "all of these"
"""Stands for all kinds of text together."""

Cells = Mapping[tuple[str, str, float], Cell]
"""By drafter, kind of text and temperature."""


def best_fixed(cells: Cells) -> list[BestFixed]:
    """Finds, for each kind of text and temperature, the fixed choice that was best, and how the autopilot compares.

    Where there are several kinds, a last row for each temperature takes the prompts of all of them: no fixed choice is
    the best for every kind.
    """
    kinds = list(dict.fromkeys(kind for _, kind, _ in cells))
    temperatures = list(dict.fromkeys(temperature for _, _, temperature in cells))
    found = []
    for chosen in (*([kind] for kind in kinds), *([kinds] if len(kinds) > 1 else [])):
        for temperature in temperatures:
            pairs: dict[str, dict[tuple[str, int], Paired]] = {}
            for (drafter, kind, at), cell in cells.items():
                if kind in chosen and at == temperature:
                    pairs.setdefault(drafter, {}).update({(kind, prompt): pair for prompt, pair in cell.pairs.items()})
            if pairs:
                found.append(_best(ALL_KINDS if len(chosen) > 1 else chosen[0], temperature, pairs))
    return found


def _best(kind: str, temperature: float, pairs: Mapping[str, Mapping[tuple[str, int], Paired]]) -> BestFixed:
    """The best fixed choice by the sums of each prompt, and the autopilot against it."""
    plain = {place: Paired(pair.plain, pair.plain) for place, pair in pairs[PLAIN].items()}  # its own measure
    fixed = {PLAIN: plain} | {name: own for name, own in pairs.items() if name not in (PLAIN, AUTO)}
    ratios = {name: speedup(list(own.values())) for name, own in fixed.items()}
    ratios[PLAIN] = Ratio(1.0)
    best = max(ratios, key=lambda name: ratios[name].value)
    auto, over = pairs.get(AUTO), None
    if auto:
        both = sorted(auto.keys() & fixed[best].keys())
        over = advantage([auto[place] for place in both], [fixed[best][place] for place in both])
    return BestFixed(kind, temperature, best, ratios[best], speedup(list(auto.values())) if auto else None, over)


def _by_depth(counted: Sequence[Sequence[Sequence[int]]]) -> list[float | None]:
    """Acceptance at each depth, from the counts [reached, accepted] of every reply."""
    depths = max(map(len, counted), default=0)
    reached, accepted = [0] * depths, [0] * depths
    for reply in counted:
        for at, (seen, taken) in enumerate(reply):
            reached[at] += seen
            accepted[at] += taken
    return [a / r if r else None for a, r in zip(accepted, reached, strict=True)]
