"""``slipstream bench``: measures, prints, and writes the figures down."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, Literal

from slipstream.app.bench.chart_svg import Section, chart_svg
from slipstream.app.bench.inflate import Wish
from slipstream.app.bench.inflated import run_inflated
from slipstream.app.bench.machine import Machine
from slipstream.app.bench.peers.choice import PeerChoice
from slipstream.app.bench.plan import ALL, Plan
from slipstream.app.bench.prompts import prompt_sets
from slipstream.app.bench.runner import Runner, tell
from slipstream.app.bench.settings import Settings
from slipstream.app.bench.stopping import Stop, Stopped
from slipstream.app.engine.offers import check_drafter
from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import BUNDLED, check_files, choose
from slipstream.app.paths import Paths
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.none import Plain
from slipstream.models.errors import SlipstreamError, UsageError, reason_of
from slipstream.models.sampling import Sampler

USUAL: Final = ("startup", "plain", "overhead", "drafters", "memory")
"""The parts that run where nothing else is asked for."""

PARTS: Final = (*USUAL, "check", "topics", "typing", "interface", "peers")

OF_A_MODEL: Final = ("drafters", "check", "topics", "typing", "peers")
"""The parts that measure the model that is asked for."""


def bench(options: argparse.Namespace, settings: Settings | None = None) -> int:
    """Runs the parts that are asked for.

    Args:
        options: What ``slipstream.app.bench.options`` describes.
        settings: Sizes and repetitions.

    Returns:
        The exit code.

    Raises:
        UsageError: If there is no such part, drafter or model, or a file of prompts is none.
        SlipstreamError: If a model cannot be made or loaded, or a file not be written.
    """
    wish = Wish.of(options.inflate, options.quant, options.inflate_drafter, options.keep_inflated)
    settings = settings or (Settings.brief() if wish else Settings())
    parts = _parts(options)
    plan = _plan(options, settings)
    peers = PeerChoice.of(options.peer, options.peer_python)
    paths = Paths.default()
    if options.no_memory:
        settings = replace(settings, drafter_steps=0)
    measured = choose(paths, options.model or BUNDLED, options.draft_model, Plain.name)
    measured = replace(measured, heads=[*measured.heads, *options.heads])
    check_files(measured)
    for option in ("json", "svg"):
        if file := getattr(options, option):
            _write(Path(file), "", "a", option)  # better to be refused now than in ten minutes
    machine = Machine.here()
    print("\n".join(machine.lines()), flush=True)
    figures: dict[str, Any] = {"machine": asdict(machine)}
    bars = list[Section]()
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder, Stop() as stop:

        def run(model: Load) -> tuple[dict[str, Any], bool]:
            return _run(Runner(settings, Path(folder), choose(paths), model, plan, peers, stop), parts, bars)

        if wish:
            figures["inflated"], passed = run_inflated(measured, wish, paths.derived, run, tell, stop)
        else:
            found, passed = run(measured)
            figures |= found
    if options.json and any(found for part, found in figures.items() if part != "machine"):
        _write(Path(options.json), json.dumps(figures, indent=2) + "\n", "w", "json")
    if options.svg and bars:
        sections = [Section(f"{each.note}; {machine.processor}", each.rows) for each in bars]
        _write(Path(options.svg), chart_svg(sections), "w", "svg")
    return 130 if stop.asked else 0 if passed else 1


def _run(runner: Runner, parts: Sequence[str], bars: list[Section]) -> tuple[dict[str, Any], bool]:
    """Runs parts and prints what they found; gives the figures and whether what was checked holds, and adds bars."""
    figures, passed = dict[str, Any](), True
    for name, run in runner.parts().items():
        if name in parts:
            try:
                outcome = run()
            except Stopped:
                break
            print(outcome.text, flush=True)
            figures[name] = outcome.figures
            passed = passed and outcome.passed
            bars += outcome.bars
    return figures, passed


def _parts(options: argparse.Namespace) -> list[str]:
    unknown = [part for part in options.only if part not in PARTS]
    if unknown:
        raise UsageError(f"there is no part {unknown[0]!r}.", f"Parts: {', '.join(PARTS)}.")
    asked = [*options.only, *(["check"] if options.check else []), *(["peers"] if options.peer else [])]
    if options.inflate and (unfit := [part for part in asked if part not in OF_A_MODEL]):
        raise UsageError(f"part {unfit[0]} measures no inflated model.", f"Parts that do: {', '.join(OF_A_MODEL)}.")
    alone = options.drafters is not None or options.prompts or options.inflate or options.svg
    parts = asked or (["drafters"] if alone else [*USUAL])
    if options.svg and "drafters" not in parts:
        raise UsageError("--svg draws part drafters, which was not asked for.", "Add --only drafters.")
    return parts


def _plan(options: argparse.Namespace, settings: Settings) -> Plan:
    """What parts ``drafters`` and ``check`` write; what is wrong with it is said before anything is loaded."""
    names = _names(options.drafters)
    accept_rule(options.typical, 1.0)  # a wrong threshold is refused
    if options.typical is not None and "check" in _parts(options):
        raise UsageError("typical acceptance changes the text: there is nothing to check.", "Leave --typical out.")
    temperatures = settings.temperatures if options.temp is None else _temperatures(options.temp)
    if options.typical is not None:
        temperatures = tuple(t for t in temperatures if t > 0)  # it does nothing at 0
        if not temperatures:
            accept_rule(options.typical, 0.0)  # which says so
    seeds = settings.seeds if options.seeds is None else options.seeds
    tokens = settings.reply if options.tokens is None else options.tokens
    for name, value in (("seeds", seeds), ("tokens", tokens)):
        if value < 1:
            raise UsageError(f"{name} is {value}; it must be 1 or more.")
    sets = prompt_sets(options.prompts, settings.limit if options.limit is None else options.limit, options.by_category)
    return Plan(names, sets, temperatures, range(1, seeds + 1), tokens, options.typical)


def _temperatures(given: str) -> tuple[float, ...]:
    """The temperatures that are asked for."""
    try:
        found = tuple(dict.fromkeys(float(each) for each in given.split(",")))
    except ValueError:
        raise UsageError(f"temp is {given!r}; it must be numbers with commas between them, such as 0,0.8.") from None
    for temperature in found:
        Sampler(temperature=temperature)  # which refuses one out of range
    return found


def _names(given: str | None) -> list[str]:
    """The drafters that are asked for; a name that there is not is refused before anything is loaded."""
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
