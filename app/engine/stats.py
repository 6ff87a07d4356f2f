"""What a reply's steps add up to, in the words of DESIGN section 3."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Final

from slipstream.app.protocol import Origin, Speed
from slipstream.drafters.base import Step, Timings
from slipstream.models.types import ROOT

_WINDOW: Final = 64
"""Steps that the speed-up looks back: sorting them costs 10 us a step."""

_ENOUGH: Final = 8
"""Plain steps of a reply from which on earlier ones no longer count: the machine may have been faster then."""


@dataclass(slots=True)
class Count:
    """Sums over some steps: drafted is the depth of the drafts."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0


class PlainClock:
    """Milliseconds of a plain step on this machine, by the latest ones measured, of this reply if it has enough."""

    def __init__(self) -> None:
        """Starts without a measurement."""
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._here = 0  # of this reply

    def begin(self) -> None:
        """Notes that a reply begins."""
        self._here = 0

    def add(self, milliseconds: float) -> None:
        """Takes one plain step's time, its drafting left out."""
        self._recent.append(milliseconds)
        self._here += 1

    @property
    def milliseconds(self) -> float | None:
        """The mean of all but the slowest fifth; None until a step was measured."""
        recent = list(self._recent)[-self._here if self._here >= _ENOUGH else 0 :]
        kept = sorted(recent)[: _kept(len(recent))]
        return sum(kept) / len(kept) if kept else None


@dataclass(slots=True)
class ReplyStats:
    """The figures of one reply.

    Attributes:
        plain: The clock of plain decoding; takes the steps without a draft.
        begun: Tokens of the reply that an earlier process wrote.
        tokens: Tokens emitted, those included.
        thought: Those of the thinking part.
        thought_ms: Milliseconds that they took.
        seconds: Time of all steps, what is done between them included.
        phases: Milliseconds of it, phase by phase.
        whole: Sums over all steps.
        by_drafter: Sums by drafter.
        drafter_depths: By drafter, per depth from 1: [steps that reached it, accepted there]. A depth below the
            first rejection, or below the end of the reply, was not reached.
    """

    plain: PlainClock
    begun: int = 0
    tokens: int = 0
    thought: int = 0
    thought_ms: float = 0.0
    seconds: float = 0.0
    phases: Timings = field(default_factory=Timings)
    whole: Count = field(default_factory=Count)
    by_drafter: dict[str, Count] = field(default_factory=dict)
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)
    _latest: deque[tuple[float, float, int]] = field(
        default_factory=lambda: deque(maxlen=_WINDOW)
    )  # ms a row, ms, tokens

    def __post_init__(self) -> None:
        """The reply begins."""
        self.plain.begin()
        self.tokens = self.begun

    def add(self, step: Step, milliseconds: float) -> None:
        """Adds a step that took ``milliseconds``, everything around it included."""
        self.tokens += len(step.tokens)
        self.seconds += milliseconds / 1e3
        times = step.timings
        self.phases.draft += times.draft
        self.phases.evaluate += times.evaluate
        self.phases.accept += times.accept
        self.phases.commit += times.commit
        self._latest.append((milliseconds / (1 + len(step.draft.tree)), milliseconds, len(step.tokens)))
        if not step.draft.tree.drafted:
            self.plain.add(milliseconds - step.timings.draft)
        depth, accepted = step.draft.tree.depth, len(step.path)
        drafter = drafter_of(step)
        for count in (self.whole, self.by_drafter.setdefault(drafter, Count())):
            count.steps += 1
            count.drafted += accepted if step.ended else depth
            count.accepted += accepted
        reached = min(depth, accepted if step.ended else accepted + 1)
        if not reached:
            return
        depths = self.drafter_depths.setdefault(drafter, [])
        depths += ([0, 0] for _ in range(reached - len(depths)))
        first_ranked = _first_ranked(step)
        for at in range(reached):
            depths[at][0] += 1
            depths[at][1] += at < first_ranked

    def think(self) -> None:
        """All steps so far belong to the reasoning, which comes first."""
        self.thought, self.thought_ms = self.tokens, 1e3 * self.seconds

    @property
    def by_depth(self) -> list[list[int]]:
        """Per depth from 1: [steps that reached it, accepted there], of all drafters."""
        depths = zip_longest(*self.drafter_depths.values(), fillvalue=(0, 0))
        return [[sum(reached), sum(accepted)] for reached, accepted in (zip(*at, strict=True) for at in depths)]

    def _undisturbed_rate(self) -> float:
        """Tokens a second over those of the latest steps that count, slowness taken per row evaluated."""
        kept = sorted(self._latest)[: _kept(len(self._latest))]
        return 1e3 * sum(tokens for _, _, tokens in kept) / sum(ms for _, ms, _ in kept)

    def phase_ms(self) -> dict[str, float]:
        """Milliseconds a step of each phase: draft, evaluate, accept, commit; "rest" is what is done between steps."""
        steps = self.whole.steps or 1
        phases = {name: total / steps for name, total in asdict(self.phases).items()}
        return phases | {"rest": max(0.0, 1e3 * self.seconds / steps - sum(phases.values()))}

    def speed(self) -> Speed:
        """The figures so far."""
        here = self.tokens - self.begun
        rate = here / self.seconds if self.seconds else 0.0
        plain = self.plain.milliseconds
        whole = self.whole
        return Speed(
            tok_per_s=rate,
            acceptance=whole.accepted / whole.drafted if whole.drafted else None,
            tokens_per_step=here / whole.steps if whole.steps else 0.0,
            speedup=self._undisturbed_rate() * plain / 1e3 if plain and self._latest else None,
            drafted=whole.drafted,
            accepted=whole.accepted,
            steps=whole.steps,
            tokens=self.tokens,
            thought=self.thought,
            thought_ms=self.thought_ms,
        )


def _kept(count: int) -> int:
    """How many of ``count`` measured steps count: the slowest fifth were disturbed by something else, or may have been.

    Plain and drafted steps are compared without them: one step that waited for a busy core would decide the ratio.
    """
    return count - count // 5


def drafter_of(step: Step) -> str:
    """The drafter of a step; "none" for a plain one."""
    return step.draft.sources[0] if step.draft.tree.drafted else "none"


def origins(step: Step) -> list[tuple[Origin, str]]:
    """The origin of each of a step's tokens, and the drafter's name where it was accepted."""
    written: list[tuple[Origin, str]] = [("accepted", step.draft.sources[node]) for node in step.path]
    if not step.draft.tree.drafted:
        return [("plain", "")]
    whole = bool(step.path) and step.path[-1] not in {
        parent for node, parent in enumerate(step.draft.tree.parents) if node not in step.draft.tree.probes
    }
    return [*written, ("bonus" if whole else "recovered", "")]


def _first_ranked(step: Step) -> int:
    """How many steps of the path went to the best-ranked child, which stands first."""
    parent = ROOT
    for count, node in enumerate(step.path):
        if node != parent + 1:
            return count
        parent = node
    return len(step.path)
