"""The parts of the benchmark, their input and their results, and the machine that they run on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slipstream.app.bench.check import check_drafters, check_text
from slipstream.app.bench.drafters import compare_drafters
from slipstream.app.bench.figures import BenchUpdate
from slipstream.app.bench.plots import ChartSection, Style, chart
from slipstream.app.bench.report import advice, drafters_text
from slipstream.app.bench.turns import CtrlC, ReplyPlan
from slipstream.app.platform.safe_text import plural
from slipstream.app.protocol.requests import Load
from slipstream.models.llama.devices import processor, survey_here
from slipstream.models.llama.library import physical_cores


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """A machine, and versions of its programs."""

    processor: str  # the CPU's model
    device: str  # the devices that run models, and the number of threads
    cores: int  # usable physical cores
    system: str  # operating system and architecture
    python: str
    llama_cpp_python: str  # the binding, whose version determines llama.cpp's
    slipstream: str
    load: float | None  # load average of the last minute when the benchmark began; None if unknown

    @staticmethod
    def here() -> BenchMachine:
        gpus = [each.description for each in survey_here().devices if each.kind in ("gpu", "igpu")]
        cores = physical_cores()
        return BenchMachine(
            processor=processor(),
            device=", ".join(gpus) or f"CPU, {plural(cores, 'thread')}",
            cores=cores,
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            llama_cpp_python=version("llama-cpp-python"),
            slipstream=version("slipstream"),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        )

    def lines(self) -> list[str]:
        busy = self.load is not None and self.load > 0.5
        return [
            f"{self.processor}; {self.cores} cores; models run on: {self.device}; {self.system}",
            f"slipstream {self.slipstream}, llama-cpp-python {self.llama_cpp_python}, Python {self.python}",
            *([f"The machine was busy (load {self.load:.1f}): figures are noisy."] if busy else []),
            "Figures: median (lowest..highest) over the rounds, ratios within a round; [..] is a 95 % interval.",
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a part."""

    text: str  # to be printed
    figures: Any  # to be written as JSON
    passed: bool = True  # False if a check failed; the exit code is then 1
    bars: Sequence[ChartSection] = ()  # its rows for a chart


@dataclass(frozen=True, slots=True)
class Setup:
    """The input of a part."""

    measured: Load
    plan: ReplyPlan
    drafter_steps: int  # tokens to write when measuring each drafter's memory; 0 skips that
    folder: Path  # for temporary files; deleted after the run
    stop: CtrlC  # once it is true, a part returns its figures so far, or raises ``Stopped`` without any
    on_update: Callable[[BenchUpdate], None] = lambda _: None  # see ``compare_drafters``


Parts = Mapping[str, Callable[[], Outcome]]  # parts by name, in the order in which they run


def parts(setup: Setup) -> Parts:
    plan = setup.plan

    def drafters() -> Outcome:
        report = compare_drafters(
            setup.measured, plan, tell, memory_steps=setup.drafter_steps, stop=setup.stop, on_update=setup.on_update
        )
        drawn = chart(report.rows, Style.of(sys.stdout), report.noise)
        text = "\n".join([drafters_text(report), drawn, "", advice(report.rows, report.noise)])
        return Outcome(text, asdict(report), bars=[ChartSection(report.model, report.rows, report.noise)])

    def check() -> Outcome:
        report = check_drafters(setup.measured, setup.plan, tell, stop=setup.stop)
        return Outcome(check_text(report), asdict(report) | {"passed": report.passed}, report.passed)

    return {"drafters": drafters, "check": check}


def tell(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)
