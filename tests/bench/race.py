"""Part ``race``: what a race shows against what ``slipstream bench`` measures of the same replies.

Each run writes one prompt's reply with one seed both ways: as a race, and as the benchmark does, with a drafter between
two of plain decoding. Which of the two goes first alternates, so that what the autopilot learns favours neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from slipstream.app.bench.intervals import Interval, ReplyPair, TimedTokens, advantage, between, speedup
from slipstream.app.bench.race import race
from slipstream.app.bench.race_events import Racer, RaceResult
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import ALL, BenchTurn, ReplyPlan, Stopped, session_of, write
from slipstream.app.engine.session import Session
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import AUTO, PLAIN, Load, Sampling

_WITHIN: Final = 0.05
_USUAL: Final = (AUTO, "lookup")


@dataclass(frozen=True, slots=True)
class RaceFigures:
    """One drafter's runs.

    Attributes:
        model: The model's name.
        drafter: The drafter's.
        raced: Of each run, both racers' work.
        benched: Of each run, the drafter's work and plain decoding's beside it.
        differing: Runs whose two texts differ.
        promise: What is promised of them, see ``Loaded.promise``.
    """

    model: str
    drafter: str
    raced: list[ReplyPair]
    benched: list[ReplyPair]
    differing: int
    promise: str

    @property
    def ratio(self) -> Interval:
        """The race's speed-up over the benchmark's."""
        return advantage(self.raced, self.benched)

    @property
    def holds(self) -> bool:
        """Whether the two agree within 5 %, or within the interval."""
        value, low, high = self.ratio.value, self.ratio.low, self.ratio.high
        return abs(value - 1) <= _WITHIN or (low is not None and high is not None and low <= 1 <= high)


def compare_race(request: Load, plan: ReplyPlan, tell: Callable[[str], None]) -> list[RaceFigures]:
    """Races and measures the first prompt of a plan, once for each seed, with each drafter.

    Raises:
        SlipstreamError: If the model cannot be loaded, or has no memory for a second context.
    """
    names = _USUAL if ALL in plan.names else [name for name in plan.names if name != PLAIN]
    found = []
    for drafter in names:
        with session_of(request) as (session, loaded):
            found.append(_compare(session, loaded, drafter, plan, tell))
    return found


def _compare(
    session: Session, loaded: Loaded, drafter: str, plan: ReplyPlan, tell: Callable[[str], None]
) -> RaceFigures:
    races, benches = list[ReplyPair](), list[ReplyPair]()
    message = plan.sets[0].prompts[0].messages
    differing = 0
    for at, seed in enumerate(plan.seeds):
        tell(f"race: {loaded.name}, {drafter}, run {at + 1} of {len(plan.seeds)}")
        sampling = Sampling(plan.temperatures[-1], seed=seed)
        turn = BenchTurn(plan.sets[0].name, 0, 0, message, sampling, plan.tokens)
        for raced in (True, False) if at % 2 else (False, True):
            if raced:
                finish = _finish(session, loaded, drafter, turn)
                differing += finish.differs_at is not None
                races.append(ReplyPair(_work(finish.frame.ours), _work(finish.frame.plain)))
            else:
                before, ours, after = (write(session, name, turn).work for name in (PLAIN, drafter, PLAIN))
                benches.append(ReplyPair(ours, between(before, after)))
    return RaceFigures(loaded.name, drafter, races, benches, differing, loaded.promise)


def _finish(session: Session, loaded: Loaded, drafter: str, turn: BenchTurn) -> RaceResult:
    *_, finish = race(session, loaded, drafter, list(turn.messages), turn.sampling, turn.tokens)
    assert isinstance(finish, RaceResult)
    if finish.stopped:
        raise Stopped
    return finish


def _work(racer: Racer) -> TimedTokens:
    return TimedTokens(racer.tokens, racer.seconds)


def race_text(found: Sequence[RaceFigures]) -> str:
    """The table."""
    rows = [
        (
            each.model,
            each.drafter,
            str(len(each.raced)),
            speedup(each.raced).text(),
            speedup(each.benched).text(),
            each.ratio.text(),
            f"{each.differing} ({each.promise})",
            "yes" if each.holds else "NO",
        )
        for each in found
    ]
    columns = ("model", "drafter", "runs", "race", "bench", "race over bench", "texts that differ", "agree")
    return table("race: the speed-up that a race shows, and the benchmark's", columns, rows)
