"""Measures drafting on a GPU with widened models, within a time limit; ``tests/bench/gpu.sh`` sets it up.

Models are widened into a folder in memory while others are measured. Each part runs in a process of its own, so that
one that fails or hangs costs only its own figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from threading import Thread
from time import sleep, time
from typing import Any, Final

from tests.bench.inflate.family import Family, Wish, families
from tests.bench.inflate.file import Inflated
from tests.bench.passes import PassClock, measure_passes, passes_text

from slipstream.app.bench.figures import Cell, DrafterFigures, best_fixed, rows_of
from slipstream.app.bench.intervals import between, measured
from slipstream.app.bench.prompts import PromptSet, prompt_sets
from slipstream.app.bench.report import table
from slipstream.app.bench.turns import BenchTurn, Stopped, session_of, usable_drafters, write
from slipstream.app.engine.process.frames import built
from slipstream.app.engine.session import Session
from slipstream.app.protocol.requests import PLAIN, Load, Sampling
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel

Pair = tuple[str, str]
"""A size and a type."""

_SPARE: Final = 2 << 30  # bytes of the folder to leave free
_ENOUGH: Final = 48 << 30  # bytes that the largest two files take
_SHARE: Final = 0.55  # share of the time left that a race may take, where more parts follow
_TEMPERATURE: Final = 0.8
_FAILED: Final = ".failed"  # ends the name of a file that could not be widened
_GRACE: Final = 4.0  # seconds after which a part that should have ended is ended
_STEPS_S: Final = 15.0  # seconds for the clock of steps, after the replies
_DEPTHS: Final = 4  # levels of a draft whose acceptance is shown
_CONTEXT: Final = 2048
_WIDENING: Final = 4  # cores


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads a command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("model", type=Path, help="the small model")
    parser.add_argument("--heads", type=Path, action="append", default=[], help="its heads: files, or folders of them")
    parser.add_argument("--draft", type=Path, help="its draft model, which is widened to --draft-shape")
    parser.add_argument("--draft-shape", default="135m")
    parser.add_argument("--race", default="13b:BF16,7b:BF16", help="SIZE:TYPE,… to compare drafters on")
    parser.add_argument("--sizes", default="13b,7b,1b", help="sizes whose passes are timed, in every type of --types")
    parser.add_argument("--types", default="BF16,Q4_0,Q8_0")
    parser.add_argument("--drafters", default="auto,draft,eagle3,dflash,medusa,kangaroo,space,lookup")
    parser.add_argument("--prompts", default="chat,story", help="sets of prompts, built-in or files")
    parser.add_argument("--limit", type=int, default=8, help="replies of each set")
    parser.add_argument("--tokens", type=int, default=48, help="most tokens of a reply")
    parser.add_argument("--seconds", type=float, default=280.0, help="time limit of everything")
    parser.add_argument(
        "--folder", type=Path, help="where models are widened; /dev/shm or the system's folder for files"
    )
    parser.add_argument("--out", type=Path, help="folder of the figures as JSON")
    parser.add_argument("--part", choices=("race", "passes"), help=argparse.SUPPRESS)
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


class Clock:
    """The time left."""

    def __init__(self, until: float) -> None:
        self.until = until

    @property
    def left(self) -> float:
        return self.until - time()

    def late(self) -> bool:
        return self.left <= 0


def cores() -> tuple[list[int], list[int]]:
    """The cores that measure, and those that widen models meanwhile; where there are few, both are all."""
    every = list(range(os.cpu_count() or 1))
    if sys.platform == "linux":
        every = sorted(os.sched_getaffinity(0))
    return (every[:-_WIDENING], every[-_WIDENING:]) if len(every) > 2 * _WIDENING else (every, every)


def stay_on(cores: Sequence[int]) -> None:
    """Keeps the calling thread on these cores; only Linux can."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cores)


class Figures:
    """The figures of a part, in one file that is complete at any time."""

    def __init__(self, out: Path | None, name: str) -> None:
        self._file, self._found = out / f"{name.replace(':', '-').lower()}.json" if out else None, dict[str, Any]()

    def add(self, name: str, figures: Any) -> None:
        self._found[name] = figures
        if self._file:
            self._file.write_text(json.dumps(self._found, indent=1) + "\n", "utf-8")


class Widening(Thread):
    """Writes the planned files one after the other, as long as there is room and time."""

    def __init__(self, files: Sequence[tuple[Inflated, Path]], first: int, clock: Clock) -> None:
        """Plans the files; the ``first`` of them are written on all cores, since nothing is measured until then."""
        super().__init__(daemon=True)
        self._files, self._first, self._clock = files, first, clock

    def run(self) -> None:
        for at, (plan, path) in enumerate(self._files):
            if at == self._first:
                stay_on(cores()[1])
            try:
                self._wait_for_room(plan, path.parent)
                began = time()
                plan.write(path)
            except SlipstreamError as error:
                path.with_name(path.name + _FAILED).touch()
                _say(f"{path.name} could not be widened: {error.title}")
            else:
                _say(f"widened {path.name}, {plan.nbytes / 1e9:.1f} GB in {time() - began:.1f} s")

    def _wait_for_room(self, plan: Inflated, folder: Path) -> None:
        """Waits until measured files are deleted."""
        needed = plan.nbytes + _SPARE
        while (disk := shutil.disk_usage(folder)).free < needed:
            if disk.total < needed or self._clock.late():
                raise SlipstreamError(f"{folder} has no {needed / 1e9:.1f} GB free.")
            sleep(0.1)


def run(asked: argparse.Namespace) -> None:
    """Runs all parts, each in a process, and prints what each prints."""
    clock = Clock(time() + asked.seconds)
    if not asked.folder:
        asked.folder = max(Path("/dev/shm"), Path(tempfile.gettempdir()), key=_room)
    raced: list[Pair] = [(size, mix) for each in asked.race.split(",") if each for size, mix in [each.split(":")]]
    paths = [path for given in asked.heads for path in (sorted(given.glob("*.gguf")) if given.is_dir() else [given])]
    load = Load(
        model=str(asked.model),
        draft_model=str(asked.draft) if asked.draft else None,
        heads=[str(path) for path in paths if path != asked.model],
    )
    shape = asked.draft_shape if asked.draft else None
    planned = {pair: families(load, _wish(pair, shape))[0] for pair in raced}
    others = [
        pair for pair in product(asked.sizes.split(","), asked.types.split(",")) if pair not in planned and pair[0]
    ]
    alone = {pair: families(Load(model=load.model), _wish(pair))[0] for pair in others}
    targets = {pair: next(family.files(asked.folder)) for pair, family in alone.items()}
    files = [file for family in planned.values() for file in family.files(asked.folder)]
    first = len(list(next(iter(planned.values())).files(asked.folder))) if planned else 0
    Widening([*files, *targets.values()], first, clock).start()
    for at, (pair, family) in enumerate(planned.items()):
        for name, reason in family.left_out.items():
            _say(f"not widened: {name}, {reason}")
        last = at + 1 == len(planned) and not targets
        seconds = clock.left * (1.0 if last else _SHARE)
        _child(
            asked,
            "race",
            {"name": ":".join(pair), "load": asdict(replace(family.load(asked.folder), n_ctx=_CONTEXT))},
            seconds,
        )
        _remove(family, asked.folder)
    rest = [{"name": ":".join(pair), "path": str(path)} for pair, (_, path) in targets.items()]
    if rest:
        _child(asked, "passes", rest, clock.left)
    for _, path in targets.values():
        path.unlink(missing_ok=True)


def _wish(pair: Pair, drafter: str | None = None) -> Wish:
    wish = Wish.of(*pair, drafter, keep=True)
    assert wish
    return wish


def _room(folder: Path) -> int:
    """Bytes free, where more than the largest files need counts alike."""
    return min(_ENOUGH, shutil.disk_usage(folder).free) if folder.is_dir() else 0


def _remove(family: Family, folder: Path) -> None:
    for _, path in family.files(folder):
        path.unlink(missing_ok=True)


def _child(asked: argparse.Namespace, part: str, plan: Any, seconds: float) -> None:
    """Runs a part; it ends itself when its time is over, and is ended a few seconds later."""
    command = [sys.executable, "-m", "tests.bench.gpu", str(asked.model), "--part", part, "--plan", json.dumps(plan)]
    command += ["--until", str(time() + seconds - _GRACE), "--drafters", asked.drafters, "--prompts", asked.prompts]
    command += ["--limit", str(asked.limit), "--tokens", str(asked.tokens)]
    command += ["--out", str(asked.out)] if asked.out else []
    try:
        code = subprocess.run(command, timeout=max(1.0, seconds)).returncode
        if code:
            _say(f"part {part} ended with code {code}")
    except subprocess.TimeoutExpired:
        _say(f"part {part} took longer than {seconds:.0f} s")


def race(asked: argparse.Namespace, plan: dict[str, Any], clock: Clock) -> None:
    """Times passes, replies with each drafter, and where their steps spend the time."""
    load: Load = built(Load, plan["load"])
    name, files = plan["name"], [load.model, *load.heads, *([load.draft_model] if load.draft_model else [])]
    if not all(_ready(Path(file), clock) for file in files):
        return
    with session_of(load) as (session, loaded):
        target = session.target
        assert isinstance(target, LlamaTarget)
        _say(f"{name} runs on {loaded.device}, {loaded.plain_tok_per_s:.0f} tokens a second without a drafter")
        figures = Figures(asked.out, f"race-{name}")
        _passes(figures, name, target.model, clock)
        usable, unusable = usable_drafters(session, loaded, asked.drafters.split(","))
        for drafter, reason in unusable.items():
            _say(f"left out: {drafter}, {reason}")
        replies = Replies(session, usable, prompt_sets(asked.prompts.split(","), asked.limit), asked.tokens)
        replies.write(
            Clock(clock.until - min(_STEPS_S, 0.2 * clock.left)),
            lambda: figures.add("drafters", [asdict(row) for row in replies.rows()]),  # kept, should a later reply fail
        )
        print(replies.text(name), flush=True)
        drafters, turn = (PLAIN, *usable), replies.turns[0]
        print(steps_text(name, session, drafters, turn, passes=PassClock(target.context), clock=clock), flush=True)


def passes(asked: argparse.Namespace, plan: list[dict[str, str]], clock: Clock) -> None:
    """Times passes of each file, and deletes it."""
    figures = Figures(asked.out, "passes")
    for each in plan:
        path = Path(each["path"])
        if not _ready(path, clock):
            return
        with suppress(SlipstreamError), closing(LlamaModel(path)) as model:
            _passes(figures, each["name"], model, clock)
        path.unlink()


def _passes(figures: Figures, name: str, model: LlamaModel, clock: Clock) -> None:
    costs = measure_passes(model, clock.late)
    print(passes_text(name, costs), flush=True)
    figures.add(f"passes {name}", [asdict(each) for each in costs])


def _ready(path: Path, clock: Clock) -> bool:
    """Waits for a file that another process writes; whether it is there."""
    while not path.exists():
        if clock.late() or path.with_name(path.name + _FAILED).exists():
            return False
        sleep(0.05)
    return True


class Replies:
    """Replies to the same prompts, one drafter after the other, in an order that turns."""

    def __init__(self, session: Session, drafters: Sequence[str], sets: Sequence[PromptSet], tokens: int) -> None:
        self._session, self._drafters, self._sets = session, drafters, sets
        self._cells: dict[tuple[str, str, float], Cell] = {}
        self.turns = [
            BenchTurn(
                kind=kind.name,
                prompt=at,
                number=0,
                messages=kind.prompts[at].messages,
                sampling=Sampling(_TEMPERATURE, seed=1 + at),
                tokens=tokens,
            )
            for at in range(max(len(kind.prompts) for kind in sets))
            for kind in sets  # so that all sets are alike when time runs out
            if at < len(kind.prompts)
        ]

    def write(self, clock: Clock, on_prompt: Callable[[], None]) -> None:
        """Writes what there is time for; a prompt counts once all drafters have written their replies."""
        for count, turn in enumerate(self.turns):
            first = count % max(1, len(self._drafters))
            order = (PLAIN, *self._drafters[first:], *self._drafters[:first])
            try:
                written = {name: write(self._session, name, turn, clock.late) for name in order}
                last = write(self._session, PLAIN, turn, clock.late)
            except Stopped:
                return
            plain = between(written[PLAIN].work, last.work)
            for name, each in written.items():
                cell = self._cells.setdefault((name, turn.kind, _TEMPERATURE), Cell())
                cell.add(turn.prompt, each, each.work if name == PLAIN else plain, each.tokens == last.tokens)
            on_prompt()

    def rows(self) -> list[DrafterFigures]:
        return rows_of(self._cells, [kind.name for kind in self._sets], [_TEMPERATURE], (PLAIN, *self._drafters))

    def text(self, name: str) -> str:
        """A row for each set and drafter, and what ``auto`` reached of the best fixed choice."""
        rows = [
            (
                row.kind,
                row.drafter,
                f"{row.equal_texts}/{row.texts}",
                f"{row.tok_per_s:.1f}",
                row.speedup_text,
                self._later(row),
                f"{row.tokens_per_step:.2f}",
                " ".join("-" if share is None else f"{share:.2f}" for share in row.by_depth[:_DEPTHS]),
                "-" if row.replayed is None else f"{row.replayed:.0%}",
                " ".join(f"{ms:.2f}" for ms in row.phases.values()),
            )
            for row in self.rows()
        ]
        head = ("text", "drafter", "same text", "tok/s", "against plain", "2nd half", "tokens/step", "right by depth")
        notes = [
            f"{row.kind}: the best fixed choice is {row.drafter}, {row.speedup.text()}; `auto` {row.auto.text()},"
            f" of that choice {row.auto_over_best.text()}"
            for row in best_fixed(self._cells)
            if row.auto and row.auto_over_best
        ]
        more = ("replayed", "ms/step: draft, evaluate, accept, commit, rest")
        return table(f"drafters, T {_TEMPERATURE:g}: {name}", (*head, *more), rows, notes)

    def _later(self, row: DrafterFigures) -> str:
        """The speed-up in the second half of the prompts, when the autopilot knows the drafters."""
        cell = self._cells.get((row.drafter, row.kind, row.temperature))
        later = measured(cell.by_prompt[len(cell.pairs) // 2 :]) if cell else None
        return f"{later.value:.2f}x" if later else ""


def steps_text(
    name: str, session: Session, drafters: Sequence[str], turn: BenchTurn, *, passes: PassClock, clock: Clock
) -> str:
    """Where a step's time goes, from a reply of each drafter whose passes are timed one by one."""
    rows = []
    for drafter in drafters:
        try:
            with passes.running():
                written = write(session, drafter, turn, clock.late, passes.after_step)
        except Stopped:
            break
        steps, phases = max(1, passes.steps), written.done.phases
        own, others = passes.own, passes.others
        inside = 1e3 * (own.submitted + own.waited) / steps
        rows.append(
            (
                drafter,
                f"{sum(phases.values()):.2f}",
                f"{phases['draft']:.2f}",
                f"{others.passes / steps:.1f}",
                f"{1e3 * (others.submitted + others.waited) / steps:.2f}",
                f"{own.passes / steps:.1f}",
                f"{1e3 * own.submitted / steps:.2f}",
                f"{1e3 * own.waited / steps:.2f}",
                f"{phases['evaluate'] - inside:.2f}",
                f"{phases['accept']:.2f}",
                f"{phases['commit']:.2f}",
            )
        )
    head = ("drafter", "step", "draft", "its passes", "in them", "target's passes", "submit", "wait", "around them")
    return table(f"a step's milliseconds: {name}", (*head, "sampling", "commit"), rows)


def _say(line: str) -> None:
    print(f"gpu: {line}", flush=True)


def main(arguments: Sequence[str]) -> None:
    asked = options(arguments)
    if not asked.part:
        run(asked)
    else:
        stay_on(cores()[0])
        part = race if asked.part == "race" else passes
        part(asked, json.loads(asked.plan), Clock(asked.until))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SlipstreamError as error:
        sys.exit(f"{error.title} {error.hint}")
