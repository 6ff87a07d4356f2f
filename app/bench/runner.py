"""The parts of the benchmark, their input and their results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.app.bench.check import check_drafters, check_text
from slipstream.app.bench.drafters import compare_drafters, ignore
from slipstream.app.bench.plan import Plan
from slipstream.app.bench.plots import Section, Style, chart
from slipstream.app.bench.progress import Update
from slipstream.app.bench.report import drafters_text
from slipstream.app.bench.stopping import Stop
from slipstream.app.protocol.requests import Load


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a part."""

    text: str  # to be printed
    figures: Any  # to be written as JSON
    passed: bool = True  # False if a check failed; the exit code is then 1
    bars: Sequence[Section] = ()  # its rows for a chart


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of a part."""

    measured: Load
    plan: Plan
    drafter_steps: int  # tokens to write when measuring each drafter's memory; 0 skips that
    folder: Path  # for temporary files; deleted after the run
    stop: Stop  # once it is true, a part returns its figures so far, or raises ``Stopped`` without any
    on_update: Callable[[Update], None] = ignore  # see ``compare_drafters``


Parts = Mapping[str, Callable[[], Outcome]]  # parts by name, in the order in which they run


def parts(setup: Setup) -> Parts:
    def drafters() -> Outcome:
        report = compare_drafters(setup.measured, setup.plan, tell, setup.drafter_steps, setup.stop, setup.on_update)
        text = drafters_text(report) + "\n" + chart(report.rows, Style.of(sys.stdout), report.noise)
        return Outcome(text, asdict(report), bars=[Section(report.model, report.rows, report.noise)])

    def check() -> Outcome:
        report = check_drafters(setup.measured, setup.plan, tell, stop=setup.stop)
        return Outcome(check_text(report), asdict(report) | {"passed": report.passed}, report.passed)

    return {"drafters": drafters, "check": check}


def tell(line: str) -> None:
    """Prints the progress on stderr."""
    print(f"bench: {line}", file=sys.stderr, flush=True)
