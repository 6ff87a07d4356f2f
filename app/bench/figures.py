"""The figures of a benchmark of drafters, without an engine: sums over replies, rows, best choices, a run's state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product, zip_longest
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from slipstream.app.bench.intervals import Interval, ReplyPair, TimedTokens, advantage, measured
from slipstream.app.engine.process.frames import built
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.app.speed import LEAST_TOKENS
from slipstream.models.types import repeated_share

if TYPE_CHECKING:  # loads the engine
    from slipstream.app.bench.turns import WrittenReply

ALL_KINDS: Final = "all texts"  # the name of a row over all kinds of text
DISAGREE: Final = 1.15  # minimum ``Noise.spread`` that is reported
EVERY: Final = 0.25  # seconds between two updates during a reply
_BUSY_SHARE: Final = 0.25


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
    first_token_ms: float  # median milliseconds; all but the last 128 tokens of the prompt were read before
    tokens: int  # tokens emitted
    equal_texts: int  # replies that were the same as plain decoding's, token for token
    texts: int  # replies
    # share of tokens that complete a run of four tokens seen earlier in the same reply; None in older stored reports
    repeated: float | None = None
    # share of the passes, the drafter's included, that the device replayed; None if it captures none
    replayed: float | None = None

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
        remarks = []
        if self.was_busy:
            remarks.append("The machine was busy: other programs slowed these figures down.")
        if self.spread >= DISAGREE:
            remarks.append(f"Two runs without a drafter differ by {self.spread:.2f}x: smaller gains mean nothing.")
        return remarks


QUIET: Final = Noise()  # no noise


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
        last = self.best[-1] if self.best else None
        return [row for row in self.rows if last and (row.kind, row.temperature) == (last.kind, last.temperature)]


@dataclass(frozen=True, slots=True)
class BenchUpdate:
    """The progress of a benchmark."""

    model: str
    drafters: tuple[str, ...]  # the compared drafters, without plain decoding
    drafter: str  # the drafter of the current reply; empty without one
    kind: str  # its kind of text
    share: float  # elapsed share of the time, 0 to 1
    left: float | None  # seconds left; None if unknown
    rows: tuple[DrafterFigures, ...]  # the rows that changed since the last update
    noise: Noise  # the noise measured so far


def encoded(update: BenchUpdate) -> dict[str, Any]:
    return {"measuring": asdict(update)}


def decoded(found: Mapping[str, Any]) -> BenchUpdate:
    """Reads an update that ``encoded`` wrote; raises ``LookupError`` or ``ProtocolError`` if it is none."""
    update: BenchUpdate = built(BenchUpdate, found["measuring"])
    return update


class RunningBench:
    """The state of a running benchmark, from its updates."""

    def __init__(self) -> None:
        self.update: BenchUpdate | None = None
        self._rows: dict[tuple[str, float, str], DrafterFigures] = {}
        self._received = 0.0

    def take(self, update: BenchUpdate) -> None:
        self.update, self._received = update, monotonic()
        self._rows |= {(row.kind, row.temperature, row.drafter): row for row in update.rows}

    @property
    def rows(self) -> Sequence[DrafterFigures]:
        """The rows so far, grouped by kind and temperature, in order of their first appearance; all texts come last."""
        groups = list(dict.fromkeys((kind, temperature) for kind, temperature, _ in self._rows))
        groups.sort(key=lambda group: group[0] == ALL_KINDS)
        return [row for group in groups for key, row in self._rows.items() if key[:2] == group]

    @property
    def left(self) -> float | None:
        """Seconds left, less the time since the newest update."""
        if self.update is None or self.update.left is None:
            return None
        return max(0.0, self.update.left - (monotonic() - self._received))


@dataclass(slots=True)
class Cell:
    """The sums of one row."""

    # per prompt: the sums of its replies and of the adjacent plain ones
    pairs: dict[int, ReplyPair] = field(default_factory=dict)
    replies: list[WrittenReply] = field(default_factory=list)
    equal: int = 0  # number of replies that equal plain decoding's, token for token

    def add(self, prompt: int, written: WrittenReply, plain: TimedTokens, equal: bool) -> None:
        pair = ReplyPair(written.work, plain)
        self.pairs[prompt] = self.pairs[prompt] + pair if prompt in self.pairs else pair
        self.replies.append(written)
        self.equal += equal

    @staticmethod
    def of_all(cells: Iterable[Cell]) -> Cell:
        every = Cell()
        for cell in cells:
            first = len(every.pairs)
            every.pairs |= {first + at: pair for at, pair in enumerate(cell.by_prompt)}
            every.replies += cell.replies
            every.equal += cell.equal
        return every

    @property
    def drafted(self) -> int:
        return sum(written.done.speed.drafted for written in self.replies)

    @property
    def by_prompt(self) -> list[ReplyPair]:
        return [self.pairs[at] for at in sorted(self.pairs)]

    def figures(self, drafter: str, kind: str, temperature: float) -> DrafterFigures:
        speeds = [written.done.speed for written in self.replies]
        drafted, steps = self.drafted, sum(speed.steps for speed in speeds)
        tokens = sum(speed.tokens for speed in speeds)
        replayed = sum(written.passes.replayed for written in self.replies)
        phases: dict[str, float] = {}
        for written in self.replies:
            for name, ms in written.done.phases.items():
                phases[name] = phases.get(name, 0.0) + ms * written.done.speed.steps / steps
        return DrafterFigures(
            drafter=drafter,
            kind=kind,
            temperature=temperature,
            tok_per_s=tokens / sum(written.work.seconds for written in self.replies),
            speedup=Interval(1.0) if drafter == PLAIN else measured(self.by_prompt),
            by_prompt=[pair.speedup for pair in self.by_prompt],
            tokens_per_step=tokens / steps,
            acceptance=sum(speed.accepted for speed in speeds) / drafted if drafted else None,
            by_depth=_by_depth([written.done.by_depth for written in self.replies]),
            phases=phases,
            first_token_ms=median(written.done.ttft_ms for written in self.replies),
            tokens=tokens,
            equal_texts=self.equal,
            texts=len(self.replies),
            repeated=sum(len(written.tokens) * repeated_share(written.tokens) for written in self.replies)
            / sum(len(written.tokens) for written in self.replies),
            replayed=replayed / sum(written.passes.total for written in self.replies) if replayed else None,
        )


Cells = Mapping[tuple[str, str, float], Cell]  # by drafter, kind of text and temperature


def best_fixed(cells: Cells) -> list[BestFixed]:
    """Compares the autopilot with the best fixed choice, for each kind of text and temperature.

    With several kinds, a last row for each temperature covers all their prompts: no fixed choice is best for all kinds.
    """
    kinds = list(dict.fromkeys(kind for _, kind, _ in cells))
    temperatures = list(dict.fromkeys(temperature for _, _, temperature in cells))
    found = []
    for chosen in (*([kind] for kind in kinds), *([kinds] if len(kinds) > 1 else [])):
        for temperature in temperatures:
            pairs: dict[str, dict[tuple[str, int], ReplyPair]] = {}
            drafting = set[str]()
            for (drafter, kind, at), cell in cells.items():
                if kind in chosen and at == temperature:
                    pairs.setdefault(drafter, {}).update({(kind, prompt): pair for prompt, pair in cell.pairs.items()})
                    drafting |= {drafter} if cell.drafted else set()
            if pairs:
                name = ALL_KINDS if len(chosen) > 1 else chosen[0]
                found.append(_best(name, temperature, pairs, pairs.keys() - drafting))
    return found


def _best(
    kind: str, temperature: float, pairs: Mapping[str, Mapping[tuple[str, int], ReplyPair]], idle: Collection[str]
) -> BestFixed:
    plain = {place: ReplyPair(pair.plain, pair.plain) for place, pair in pairs[PLAIN].items()}  # its own baseline
    fixed = {PLAIN: plain} | {name: own for name, own in pairs.items() if name not in (PLAIN, AUTO, *idle)}
    ratios = {name: ratio for name, own in fixed.items() if (ratio := measured(list(own.values())))}
    ratios[PLAIN] = Interval(1.0)
    best = max(ratios, key=lambda name: ratios[name].value)
    auto, over = pairs.get(AUTO), None
    if auto:
        both = sorted(auto.keys() & fixed[best].keys())
        over = advantage([auto[place] for place in both], [fixed[best][place] for place in both])
    return BestFixed(
        kind=kind,
        temperature=temperature,
        drafter=best,
        speedup=ratios[best],
        auto=measured(list(auto.values())) if auto else None,
        auto_over_best=over,
    )


def rows_of(
    cells: Cells, kinds: Sequence[str], temperatures: Sequence[float], drafters: Sequence[str]
) -> list[DrafterFigures]:
    """A row for each kind of text, temperature and drafter; with several kinds, also rows over all of them."""
    rows = []
    for kind in (*kinds, *([ALL_KINDS] if len(kinds) > 1 else [])):
        parts = kinds if kind == ALL_KINDS else [kind]
        for temperature, name in product(temperatures, drafters):
            found = [cells[key] for part in parts if (key := (name, part, temperature)) in cells]
            if found:
                rows.append(Cell.of_all(found).figures(name, kind, temperature))
    return rows


def _by_depth(counted: Sequence[Sequence[Sequence[int]]]) -> list[float | None]:
    sums = (map(sum, zip(*depth, strict=True)) for depth in zip_longest(*counted, fillvalue=(0, 0)))
    return [accepted / reached if reached else None for reached, accepted in sums]
