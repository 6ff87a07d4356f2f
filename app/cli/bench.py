"""``slipstream bench``: measures, prints, and writes the figures to files."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from slipstream.app.bench import STDOUT
from slipstream.app.bench.figures import BenchUpdate, encoded
from slipstream.app.bench.plots import ChartSection, chart_svg
from slipstream.app.bench.prompts import prompt_sets
from slipstream.app.bench.report import share_line
from slipstream.app.bench.runner import BenchMachine, Parts, Setup, parts
from slipstream.app.bench.turns import ALL, BenchAmounts, CtrlC, ReplyPlan, Stopped
from slipstream.app.engine.drafter_list import check_drafter
from slipstream.app.library.load_request import BUNDLED, check_files, placed
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.app.protocol.requests import AUTO, Load, Lora, Sampling
from slipstream.app.settings.file import known
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.base import Plain
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.library.records import read_facts
from slipstream.models.outside import decimal_number

PARTS: Final = ("drafters", "check")
_SHARED: Final = MappingProxyType({"story": "prose", "code": "code"})
"""The sets of prompts of ``--share``, and a word for each."""
Figures = dict[str, Any]
Run = Callable[[Load], tuple[Figures, bool]]  # measures a model; returns its figures, and whether all checks passed
Models = Callable[[Load, Run, CtrlC], tuple[Figures, bool]]
"""Measures the chosen model, or others made from it, with a ``Run``."""


def bench(options: argparse.Namespace, settings: BenchAmounts | None = None) -> int:
    unknown = [part for part in options.only if part not in PARTS]
    if unknown:
        raise UsageError(f"there is no part {unknown[0]!r}.", f"Parts: {', '.join(PARTS)}.")
    names = [*options.only, *(["check"] if options.check else [])] or ["drafters"]
    if options.svg and "drafters" not in names:
        raise UsageError("--svg draws part drafters, which was not asked for.", "Add --only drafters.")
    if options.typical is not None and "check" in names:
        raise UsageError("typical acceptance changes the text: there is nothing to check.", "Leave --typical out.")
    if options.share:
        fixed = ("drafters", "prompts", "temp", "seeds", "typical", "only", "check", "json", "svg", "progress")
        if given := next((name for name in fixed if getattr(options, name)), None):
            raise UsageError(f"--share measures the same for everyone, without --{given}.", "Leave one of them out.")
        options.drafters, options.prompts, options.temp = AUTO, list(_SHARED), f"{Sampling().temperature:g}"
        options.no_memory = True
    return measure(options, names, parts, settings)


def measure(
    options: argparse.Namespace,
    names: Sequence[str],
    parts: Callable[[Setup], Parts],
    settings: BenchAmounts | None = None,
    models: Models = lambda model, run, _stop: run(model),
) -> int:
    settings = settings or BenchAmounts()
    plan, paths = _plan(options, settings), Paths.default()
    measured = choose(paths, options.model or BUNDLED, options.draft_model, Plain.name)
    loras = [Lora.read(each) for each in options.lora or ()]
    heads, exact = [*measured.heads, *options.heads], options.exact or measured.exact
    measured = replace(measured, heads=heads, lora=loras, exact=exact)
    check_files(measured)
    share = getattr(options, "share", False)
    quiet = share or options.json == STDOUT  # one line, or the figures, for a program, stand alone there
    for option in ("json", "svg"):
        if (file := getattr(options, option)) and file != STDOUT:
            _write(Path(file), "", "a", option)  # fails now instead of after the measurement
    machine = BenchMachine.here()
    if not quiet:
        print("\n".join(machine.lines()), flush=True)
    bars = list[ChartSection]()
    steps = 0 if options.no_memory else settings.drafter_steps
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder, CtrlC() as stop:

        def run(model: Load) -> tuple[Figures, bool]:
            model = placed(model, options.gpu_layers, options.rpc, options.draft_device)
            setup = Setup(
                measured=model,
                plan=plan,
                drafter_steps=steps,
                folder=Path(folder),
                stop=stop,
                on_update=_print if options.progress else lambda _: None,
            )
            every = parts(setup)
            return _run({name: every[name] for name in every if name in names}, bars, quiet)

        figures, passed = models(measured, run, stop)
    if options.json and any(figures.values()):
        text = json.dumps({"machine": asdict(machine)} | figures, indent=2) + "\n"
        print(text, end="") if quiet else _write(Path(options.json), text, "w", "json")
    if share and bars:
        on_cpu = options.gpu_layers == 0 or machine.device.startswith("CPU")
        where = f"{machine.processor}, {machine.cores} cores" if on_cpu else machine.device
        model = f"{bars[0].note} {read_facts(Path(measured.model)).quant}".rstrip()
        busy = " | other programs slowed it down" if bars[0].noise.was_busy else ""
        print(f"slipstream {machine.slipstream} | {share_line(where, model, bars[0].rows, _SHARED)}{busy}")
    if options.svg and bars:
        sections = [replace(each, note=f"{each.note}; {machine.processor}") for each in bars]
        _write(Path(options.svg), chart_svg(sections), "w", "svg")
    return 130 if stop.asked else 0 if passed else 1


def _run(parts: Parts, bars: list[ChartSection], quiet: bool) -> tuple[Figures, bool]:
    """Runs parts, prints results unless ``quiet``, adds to ``bars``; returns figures, and whether all checks passed."""
    figures, passed = Figures(), True
    for name, run in parts.items():
        try:
            outcome = run()
        except Stopped:
            break
        if not quiet:
            print(outcome.text, flush=True)
        figures[name] = outcome.figures
        passed = passed and outcome.passed
        bars += outcome.bars
    return figures, passed


def _print(update: BenchUpdate) -> None:
    print(json.dumps(encoded(update)), flush=True)


def _plan(options: argparse.Namespace, settings: BenchAmounts) -> ReplyPlan:
    """Makes the plan from the options; raises ``UsageError`` for a wrong one before anything is loaded."""
    names = _names(options.drafters)
    accept_rule(options.typical, 1.0)  # raises for a wrong threshold
    temperatures = settings.temperatures if options.temp is None else _temperatures(options.temp)
    if options.typical is not None:
        temperatures = tuple(t for t in temperatures if t > 0)  # it has no effect at 0
        if not temperatures:
            accept_rule(options.typical, 0.0)  # raises the error for temperature 0
    seeds = settings.seeds if options.seeds is None else options.seeds
    tokens = settings.reply if options.tokens is None else options.tokens
    for name, value in (("seeds", seeds), ("tokens", tokens)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be 1 or more.")
    sets = prompt_sets(options.prompts, settings.limit if options.limit is None else options.limit, options.by_category)
    typical, every = options.typical, range(1, seeds + 1)
    return ReplyPlan(names, sets, temperatures, seeds=every, tokens=tokens, typical=typical)


def _temperatures(given: str) -> tuple[float, ...]:
    try:
        found = tuple(dict.fromkeys(decimal_number(each) for each in given.split(",")))
    except ValueError:
        raise UsageError(f"temp is {given!r}; it must be numbers with commas between them, such as 0,0.8.") from None
    for temperature in found:
        known("sampling.temperature").checked(temperature)
    return found


def _names(given: str | None) -> list[str]:
    names = [ALL] if given is None else [name.strip() for name in given.split(",")]
    for name in names:
        if name != ALL:
            check_drafter(name)
    return names


def _write(path: Path, text: str, mode: Literal["a", "w"], option: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = reason_of(error)
        raise SlipstreamError(f"cannot write {path}: {reason}.", f"Give --{option} another file's name.") from error
