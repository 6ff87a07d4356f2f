"""Part ``busy``: what a drafter gains over plain decoding alone, and beside other programs that want the processor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Final

from tests.bench.waiting import busy

from slipstream.app.bench.intervals import Interval, ReplyPair, TimedTokens, between, speedup
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import ALL, BenchTurn, ReplyPlan, conversations, session_of, write
from slipstream.app.engine.session import Session
from slipstream.app.protocol.requests import AUTO, PLAIN, Load

LEAST: Final = 60
"""Tokens of a reply that counts: shorter ones are mostly noise."""
COMPANY: Final = ("nothing", "bursts", "two loops")
"""What runs beside it: nothing, one loop in bursts of half a second to two seconds, or a loop on each of two cores."""
_BURSTS: Final = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.5, 2.0)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.5, 2.0))
"""


@dataclass(frozen=True, slots=True)
class BusyFigures:
    """One drafter's replies in one company.

    Attributes:
        company: What ran beside it, of ``COMPANY``.
        drafter: The drafter's name.
        sets: Of each set of prompts, the replies: wall time with everything, and plain decoding's beside it.
        short: Replies that were left out, for fewer than ``LEAST`` tokens.
        read: Tokens of all prompts that were read before plain replies, the drafter's, and the plain ones after these;
            equal, or the figures flatter whatever came after the first.
    """

    company: str
    drafter: str
    sets: dict[str, list[ReplyPair]]
    short: int
    read: tuple[int, ...]

    @property
    def pairs(self) -> list[ReplyPair]:
        """All replies."""
        return [pair for pairs in self.sets.values() for pair in pairs]

    @property
    def worst(self) -> tuple[str, Interval]:
        """The set of the least gain, and the gain."""
        return min(((name, speedup(pairs)) for name, pairs in self.sets.items()), key=lambda found: found[1].value)

    @property
    def middle(self) -> float:
        """The median of the replies' ratios."""
        return median(pair.speedup or 0.0 for pair in self.pairs)


def measure_busy(request: Load, plan: ReplyPlan, tell: Callable[[str], None]) -> list[BusyFigures]:
    """Writes the plan's replies in each company, each between two of plain decoding.

    Raises:
        SlipstreamError: If the model cannot be loaded.
    """
    names = (AUTO,) if ALL in plan.names else [name for name in plan.names if name != PLAIN]
    found = []
    for company in COMPANY:
        for name in names:
            with beside(company), session_of(request) as (session, _):
                found.append(_measure(session, company, name, plan, tell))
    return found


@contextmanager
def beside(company: str) -> Iterator[None]:
    """Runs the company."""
    if company == "bursts":
        with subprocess.Popen([sys.executable, "-c", _BURSTS]) as process:
            try:
                yield
            finally:
                process.kill()
    else:
        with busy(2 if company == "two loops" else 0):
            yield


def _measure(session: Session, company: str, drafter: str, plan: ReplyPlan, tell: Callable[[str], None]) -> BusyFigures:
    sets, short, read = dict[str, list[ReplyPair]](), 0, [0, 0, 0]
    talks = conversations(plan)
    for at, (kind, prompt, said, sampling) in enumerate(talks):
        tell(f"busy: {drafter} beside {company}, reply {at + 1} of {len(talks)}")
        turn = BenchTurn(kind, prompt, 0, (*said.messages,), sampling, plan.tokens)
        timed = [_timed(session, name, turn) for name in (PLAIN, drafter, PLAIN)]
        before, ours, after = (work for work, _ in timed)
        read = [sum(both) for both in zip(read, (prompt for _, prompt in timed), strict=True)]
        if ours.tokens < LEAST:
            short += 1
        else:
            sets.setdefault(kind, []).append(ReplyPair(ours, between(before, after)))
    return BusyFigures(company, drafter, sets, short, tuple(read))


def _timed(session: Session, drafter: str, turn: BenchTurn) -> tuple[TimedTokens, int]:
    session.forget()  # the reply before has read the same prompt
    began = perf_counter()
    written = write(session, drafter, turn)
    return TimedTokens(len(written.tokens), perf_counter() - began), written.done.prefilled_tokens


def busy_text(found: Sequence[BusyFigures]) -> str:
    """A row for each company and drafter."""
    rows = []
    for figures in found:
        kept = bool(figures.pairs)
        name, worst = figures.worst if kept else ("", None)
        rows.append(
            (
                figures.company,
                figures.drafter,
                f"{len(figures.pairs)} ({figures.short} too short)",
                speedup(figures.pairs).text() if kept else "-",
                f"{figures.middle:.2f}x" if kept else "-",
                f"{name} {worst.text()}" if worst else "-",
            )
        )
    columns = ("beside it", "drafter", "replies", "against plain [95 %]", "median", "worst set")
    note = f"Wall time of whole replies of {LEAST} tokens or more, first ones and reading included."
    return table("busy: whole replies beside other programs", columns, rows, [note])
