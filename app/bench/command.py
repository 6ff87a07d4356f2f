"""``slipstream bench``: measures, prints, and writes the figures down."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

from slipstream.app.bench.drafters import ALL, compare_drafters
from slipstream.app.bench.machine import Machine
from slipstream.app.bench.memory import measure_memory
from slipstream.app.bench.overhead import measure_overhead
from slipstream.app.bench.plain import compare_with_bare, opened
from slipstream.app.bench.prompts import BUILT_IN, PromptSet, prompt_sets
from slipstream.app.bench.report import drafters_text, memory_text, overhead_text, plain_text
from slipstream.app.bench.settings import Settings
from slipstream.app.bench.weights import ModelShape, write_model
from slipstream.app.engine.requests import Load
from slipstream.app.model_choice import check_files, choose
from slipstream.app.paths import Paths
from slipstream.drafters.accept import accept_rule
from slipstream.drafters.registry import check_name
from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.runtime.options import ContextOptions

PARTS: Final = ("plain", "overhead", "drafters", "memory")


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
    unknown = [part for part in options.only if part not in PARTS]
    if unknown:
        raise UsageError(f"there is no part {unknown[0]!r}.", f"Parts: {', '.join(PARTS)}.")
    only = options.only or (["drafters"] if options.drafters is not None or options.prompts else PARTS)
    names = _names(options.drafters)
    accept_rule(options.typical, 1.0)  # a wrong threshold is refused before anything is loaded
    sets = prompt_sets(options.prompts, options.limit)
    paths = Paths.default()
    measured = choose(paths, options.model, options.draft_model)
    check_files(measured)
    if options.json:
        _write(Path(options.json), "", "a")  # better to be refused now than in ten minutes
    machine = Machine.here()
    print("\n".join(machine.lines()), flush=True)
    figures: dict[str, Any] = {"machine": asdict(machine)}
    settings = settings or Settings()
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        runner = _Runner(settings, Path(folder), choose(paths), measured, names, sets, options.typical)
        for part in PARTS:
            if part in only:
                text, figures[part] = runner.parts()[part]()
                print(text, flush=True)
    if options.json:
        _write(Path(options.json), json.dumps(figures, indent=2) + "\n", "w")
    return 0


class _Runner:
    """The parts, each of which returns its text and its figures; models are made when they are first needed."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        bundled: Load,
        measured: Load,
        names: Sequence[str],
        sets: Sequence[PromptSet],
        typical: float | None,
    ) -> None:
        self._settings, self._folder, self._bundled = settings, folder, bundled
        self._measured, self._names, self._sets, self._typical = measured, names, sets, typical
        threads = settings.threads
        self._bundled_options = ContextOptions(
            kv="q8_0", flash=True, same_text=True, threads=threads
        )  # as it is loaded

    def parts(self) -> dict[str, Callable[[], tuple[str, Any]]]:
        return {"plain": self._plain, "overhead": self._overhead, "drafters": self._drafters, "memory": self._memory}

    def _plain(self) -> tuple[str, Any]:
        settings = self._settings
        rows = []
        for name, path, options, steps in (
            (*self._large(), settings.large_steps),
            ("bundled", Path(self._bundled.model), self._bundled_options, settings.bundled_steps),
        ):
            with opened(path, options) as target:
                size = path.stat().st_size
                rows.append(compare_with_bare(name, size, target, settings.start, steps, settings.plain_rounds, _tell))
        return plain_text(rows), [asdict(row) for row in rows]

    def _overhead(self) -> tuple[str, Any]:
        settings = self._settings
        shape, rows = settings.wide, []
        # 32-bit sums, so that the drafter's script stays right whatever branch wins; the cost of the cache is
        # inside llama_decode
        options = ContextOptions(n_ctx=settings.wide_ctx, kv="f32", flash=False, threads=settings.threads)
        with opened(self._made(shape), options) as target:
            for used in settings.used:
                for tree in settings.trees:
                    steps, rounds = settings.overhead_steps, settings.overhead_rounds
                    rows.append(measure_overhead(target, tree, used, steps, rounds, _tell))
        return overhead_text(rows, shape.n_vocab, settings.wide_ctx), [asdict(row) for row in rows]

    def _drafters(self) -> tuple[str, Any]:
        settings = self._settings
        seeds = settings.seeds if self._sets is BUILT_IN else settings.seeds[:1]  # a file has prompts enough
        exact = self._typical is None
        temperatures = [t for t in settings.temperatures if exact or t > 0]  # it does nothing at 0
        report = compare_drafters(
            self._measured, temperatures, seeds, settings.reply, _tell, self._names, self._sets, self._typical
        )
        return drafters_text(report), asdict(report)

    def _memory(self) -> tuple[str, Any]:
        rows = []
        for name, path, options in (
            ("bundled", Path(self._bundled.model), self._bundled_options),
            self._large(),
        ):
            _tell(f"memory: {name}")
            rows.append(measure_memory(name, path, options, self._settings.memory_steps))
        return memory_text(rows), [asdict(row) for row in rows]

    def _large(self) -> tuple[str, Path, ContextOptions]:
        shape = self._settings.large
        return (
            shape.name,
            self._made(shape),
            ContextOptions(n_ctx=self._settings.large_ctx, threads=self._settings.threads),
        )

    def _made(self, shape: ModelShape) -> Path:
        path = self._folder / f"{shape.n_vocab}-{shape.n_embd}-{shape.n_layer}.gguf"
        if not path.exists():
            _tell("writing a model of random weights")
            write_model(path, shape)
        return path


def _names(given: str | None) -> list[str]:
    """The drafters that are asked for; a name that there is not is refused before anything is loaded."""
    names = [ALL] if given is None else [name.strip() for name in given.split(",")]
    for name in names:
        if name != ALL:
            check_name(name)
    return names


def _tell(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


def _write(path: Path, text: str, mode: Literal["a", "w"]) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SlipstreamError(f"cannot write {path}: {reason}.", "Give --json another file's name.") from error
