"""The statistics of a reply's steps, the baseline of its speed-up, and the load of other programs."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from time import perf_counter, sleep
from typing import Final

import psutil

from slipstream.app.protocol.events import Origin
from slipstream.app.speed import Speed
from slipstream.drafters.base import Step
from slipstream.models.types import ROOT

_ENOUGH: Final = 8
"""From this many plain steps on, the baseline ignores earlier replies: the machine may have been faster then."""
_LEAST: Final = 4  # minimum plain steps for a baseline
_WINDOW: Final = 64  # plain steps that are remembered from one reply to the next
_FRESH_SECONDS: Final = 60.0
_FRESH_STEPS: Final = 200  # a plain step counts for ``_FRESH_SECONDS``, or for the time of this many steps if longer
_NEAR: Final = 256  # a step counts if its text length is within this many tokens, or a quarter of the text if more
_UNSURE: Final = 0.1  # relative standard error of the baseline above which there is no ratio
_BUSY: Final = 0.2  # share of the processor that other programs use, above which the machine is busy
_SPILLED: Final = 3.0  # how many times as long plain passes take where a GPU's memory spills over
_SLOW_PASSES: Final = 8  # such passes in a row, before the memory of the GPU is looked at
_SPILL_CURE: Final = (
    "Some of the model is probably in slower memory now: shorten the context (/context 4096, --context 4096), choose no"
    " drafter (/drafter none), or close other programs that use the GPU."
)
_PHASES: Final = ("draft", "evaluate", "accept", "commit")  # of a step
_LOOK_EVERY: Final = 0.5  # seconds between two looks at the load: the system counts in hundredths of a second


@dataclass(slots=True)
class Count:
    """Sums over some steps; ``drafted`` sums the depths of the drafts."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class _PlainStep:
    """A plain step: its end in seconds, its time in milliseconds, and the tokens before it."""

    at: float
    ms: float
    length: int


class OtherPrograms:
    """Measures the share of the processor that other programs use, which slow the steps down."""

    def __init__(self) -> None:
        self._own = [own := psutil.Process(), *own.parents()]  # the interface, and the terminal that draws it
        self._at = 0.0
        self._before = (0.0, 0.0)
        self._busy = False

    def begin(self) -> None:
        self._at, self._before, self._busy = perf_counter(), self._times(), False

    @property
    def busy(self) -> bool:
        """Whether they used much of the processor lately, since ``begin``."""
        now = perf_counter()
        if now - self._at >= _LOOK_EVERY:
            times = self._times()
            idle, whole = (after - before for after, before in zip(times, self._before, strict=True))
            self._at, self._before, self._busy = now, times, whole > 0 and 1 - idle / whole > _BUSY
        return self._busy

    def busy_at_last(self) -> bool:
        """``busy``, after a wait if it is too early to know."""
        sleep(max(0.0, self._at + _LOOK_EVERY - perf_counter()))
        return self.busy

    def _times(self) -> tuple[float, float]:
        """Seconds in which the processor was idle or worked for this program, and all of its seconds."""
        times, own = psutil.cpu_times(), 0.0
        for process in self._own:
            with suppress(psutil.Error):  # it has ended
                own += sum(process.cpu_times()[:2])
        idle = times.idle + getattr(times, "iowait", 0.0)
        guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice, too
        return idle + own, sum(times) - guest


class PlainClock:
    """The baseline of every speed-up: the current time of a plain step at this length of text.

    It is the mean of whole steps, including disturbed ones, like the speed of a reply, so a reply of plain steps is
    exactly as fast as the baseline. With few steps, one disturbed step would dominate, so there is no baseline.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._recent: deque[_PlainStep] = deque(maxlen=_WINDOW)
        self._length = 0  # tokens of the text
        self._count, self._sum, self._squares = 0, 0.0, 0.0  # of this reply
        self._figures = (0, 0.0, 0.0)

    def begin(self, length: int) -> None:
        self._length = length
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self._figures = self._sums()

    def add(self, milliseconds: float, length: int) -> None:
        self._recent.append(_PlainStep(self._clock(), milliseconds, length))
        self._length = length
        self._count += 1
        self._sum += milliseconds
        self._squares += milliseconds**2
        self._figures = self._sums()

    def forget(self) -> None:
        self._recent.clear()
        self.begin(self._length)

    @property
    def milliseconds(self) -> float | None:
        count, mean, spread = self._figures
        return mean if count >= _LEAST and spread <= _UNSURE * count**0.5 else None

    @property
    def unsteady_ms(self) -> float | None:
        """The mean where the steps differ too much for ``milliseconds``; None otherwise."""
        count, mean, _ = self._figures
        return mean if count >= _LEAST and self.milliseconds is None else None

    @property
    def noise(self) -> float:
        """The relative standard error of ``milliseconds``."""
        count, _, spread = self._figures
        return spread / count**0.5 if count else 0.0

    def _sums(self) -> tuple[int, float, float]:
        """The number of steps that count, their mean in milliseconds, and their relative standard deviation."""
        count, total, squares = self._count, self._sum, self._squares
        if count < _ENOUGH:
            times = self._near()
            count, total, squares = len(times), sum(times), sum(ms**2 for ms in times)
        mean = total / count if count else 0.0
        variance = max(0.0, squares / count - mean**2) if count else 0.0
        return count, mean, variance**0.5 / mean if mean else 0.0

    def _near(self) -> list[float]:
        """Times of the steps that count: recent, and at about this length of text."""
        now, reach = self._clock(), max(_NEAR, self._length // 4)
        near = [step for step in self._recent if abs(step.length - self._length) <= reach]
        return [each.ms for each in near if now - each.at <= max(_FRESH_SECONDS, _FRESH_STEPS * each.ms / 1e3)]


class SpillWatch:
    """Notices plain passes that take several times as long as they once did, while the memory of a GPU is full.

    A driver may then keep a part of the model in the machine's memory, without any message.
    """

    def __init__(self, known_ms: float, now_ms: float, growth: float, full: Callable[[], bool]) -> None:
        """Starts to watch.

        ``known_ms`` is the least time of a plain pass at a short text over all loads of this model, ``now_ms`` that of
        this load. A token of the text makes it longer by the share ``growth``: the bytes of its KV cache over those of
        the weights. ``full`` says whether the memory of a GPU that is used is full.
        """
        self._known_ms, self._growth, self._full = known_ms, growth, full
        self._slow_passes = _SLOW_PASSES - 1 if now_ms > _SPILLED * known_ms else 0
        self._reported = False

    def add(self, step: Step, length: int) -> dict[str, str]:
        """Call after each step, with the tokens of the text; returns what to report and to try, once."""
        if len(step.draft.tree) or self._reported:
            return {}
        times = step.timings.evaluate / (self._known_ms * (1 + self._growth * length))
        self._slow_passes = self._slow_passes + 1 if times > _SPILLED else 0
        if self._slow_passes % _SLOW_PASSES or not self._slow_passes or not self._full():
            return {}
        self._reported = True
        return {f"the GPU's memory is full, and a pass takes {times:.0f} times as long as it once did.": _SPILL_CURE}


@dataclass(slots=True)
class ReplyStats:
    plain: PlainClock  # the clock of plain decoding; gets the plain steps
    others: OtherPrograms = field(default_factory=OtherPrograms)
    begun: int = 0  # tokens of the reply that an earlier process wrote
    prompt_tokens: int = 0  # tokens before the reply
    tokens: int = 0  # tokens emitted, including ``begun``
    thought: int = 0  # tokens of the reasoning
    thought_ms: float = 0.0  # milliseconds of the reasoning
    seconds: float = 0.0  # time of all steps, including the work between them
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PHASES, 0.0))  # milliseconds of each
    whole: Count = field(default_factory=Count)  # sums over all steps
    by_drafter: dict[str, Count] = field(default_factory=dict)  # sums by drafter
    # by drafter, per depth from 1: [steps that reached it, accepted there]. A step reaches no depth after its first
    # rejection or after the end of the reply
    drafter_depths: dict[str, list[list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = self.begun
        self.plain.begin(self.prompt_tokens + self.begun)
        self.others.begin()

    def add(self, step: Step, milliseconds: float) -> None:
        self.tokens += len(step.tokens)
        self.seconds += milliseconds / 1e3
        for phase in _PHASES:
            self.phases[phase] += getattr(step.timings, phase)
        if not len(step.draft.tree) and not step.evaluation.padding:
            self.plain.add(milliseconds - step.timings.draft, self.prompt_tokens + self.tokens)
        accepted = len(step.path)
        drafter = drafter_of(step)
        for count in (self.whole, self.by_drafter.setdefault(drafter, Count())):
            count.steps += 1
            count.drafted += judged_depth(step)
            count.accepted += accepted
        reached = min(judged_depth(step), accepted + 1)
        if not reached:
            return
        depths = self.drafter_depths.setdefault(drafter, [])
        depths += ([0, 0] for _ in range(reached - len(depths)))
        first_ranked = _first_ranked(step)
        for at in range(reached):
            depths[at][0] += 1
            depths[at][1] += at < first_ranked

    def think(self) -> None:
        self.thought, self.thought_ms = self.tokens, 1e3 * self.seconds

    @property
    def by_depth(self) -> list[list[int]]:
        """Per depth from 1: [steps that reached it, accepted there], summed over all drafters."""
        depths = zip_longest(*self.drafter_depths.values(), fillvalue=(0, 0))
        return [[sum(reached), sum(accepted)] for reached, accepted in (zip(*at, strict=True) for at in depths)]

    def phase_ms(self) -> dict[str, float]:
        """Mean milliseconds of each phase in a step; "rest" is the work between steps."""
        steps = self.whole.steps or 1
        phases = {name: total / steps for name, total in self.phases.items()}
        return phases | {"rest": max(0.0, 1e3 * self.seconds / steps - sum(phases.values()))}

    def speed(self) -> Speed:
        here = self.tokens - self.begun
        rate = here / self.seconds if self.seconds else 0.0
        plain, unsteady, whole = self.plain.milliseconds, self.plain.unsteady_ms, self.whole
        return Speed(
            tok_per_s=rate,
            acceptance=whole.accepted / whole.drafted if whole.drafted else None,
            tokens_per_step=here / whole.steps if whole.steps else 0.0,
            plain_tok_per_s=1e3 / plain if plain else None,
            busy=self.others.busy,
            noise=self.plain.noise,
            unsteady_tok_per_s=1e3 / unsteady if unsteady else None,
            drafted=whole.drafted,
            accepted=whole.accepted,
            steps=whole.steps,
            tokens=self.tokens,
            earlier=self.begun,
            thought=self.thought,
            thought_ms=self.thought_ms,
        )


def judged_depth(step: Step) -> int:
    """The depth of a step's draft; what lies beyond the end of the reply is not judged, and not counted."""
    return len(step.path) if step.ended else step.draft.tree.depth


def drafter_of(step: Step) -> str:
    return step.draft.sources[0] if step.draft.tree.drafted else "none"


def origins(step: Step) -> list[tuple[Origin, str]]:
    """The origin of each token of a step, and the drafter's name for accepted tokens."""
    written: list[tuple[Origin, str]] = [("accepted", step.draft.sources[node]) for node in step.path]
    if not step.draft.tree.drafted:
        return [("plain", "")]
    whole = bool(step.path) and step.path[-1] not in {
        parent for node, parent in enumerate(step.draft.tree.parents) if node not in step.draft.tree.probes
    }
    return [*written, ("bonus" if whole else "recovered", "")]


def _first_ranked(step: Step) -> int:
    """Number of nodes at the start of the path that are the first, best-ranked child of their parent."""
    parent = ROOT
    for count, node in enumerate(step.path):
        if node != parent + 1:
            return count
        parent = node
    return len(step.path)
