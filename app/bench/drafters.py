"""Part ``drafters``: compares drafting methods on one model; each reply is written between two plain ones."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from statistics import median
from time import perf_counter
from typing import Final

from slipstream.app.bench.estimate import Estimate
from slipstream.app.bench.figures import (
    ALL_KINDS,
    EVERY,
    BenchUpdate,
    Cell,
    Cells,
    DrafterReport,
    Noise,
    best_fixed,
    rows_of,
)
from slipstream.app.bench.intervals import TimedTokens, between
from slipstream.app.bench.turns import (
    BenchTurn,
    ReplyPlan,
    WrittenReply,
    hello,
    never,
    play,
    session_of,
    usable_drafters,
    write,
)
from slipstream.app.engine.process.frames import built
from slipstream.app.platform.processes import peak_bytes
from slipstream.app.protocol.requests import PLAIN, Load
from slipstream.models.child import end_with_parent, run_child
from slipstream.models.errors import SlipstreamError, UsageError

_PATIENCE_S: Final = 3600.0  # seconds that a process may take to load a model and write with it


def turn_of(drafters: Sequence[str]) -> list[str]:
    return [PLAIN, *(name for drafter in drafters for name in (drafter, PLAIN))]


class BenchMeter:
    """Tracks a measurement: the time left, the noise, and the rows so far."""

    def __init__(
        self, model: str, plan: ReplyPlan, names: Sequence[str], estimate: Estimate, tell: Callable[[BenchUpdate], None]
    ) -> None:
        self.drafters, self.estimate = names, estimate
        self._model, self._kinds, self._on_update = model, [kind.name for kind in plan.sets], tell
        self._cells: dict[tuple[str, str, float], Cell] = {}
        self._now = ("", "")  # drafter and kind of text
        self._updated = 0.0
        self._differ: list[float] = []  # ratios of the speeds of two successive plain replies to the same prompt
        self._busy: list[bool] = []  # whether each of plain decoding's replies was disturbed

    def begin(self, name: str, turn: BenchTurn) -> None:
        self._now = (name, turn.kind)
        self.estimate.reply(name)

    def on_step(self) -> None:
        if perf_counter() > self._updated + EVERY:
            self._tell([])

    def end(self, name: str, written: WrittenReply) -> None:
        self.estimate.end(len(written.tokens))
        if name == PLAIN:
            self._busy.append(written.done.speed.busy)

    def compare(
        self, turn: BenchTurn, name: str, before: WrittenReply, written: WrittenReply, after: WrittenReply
    ) -> None:
        rates = sorted(each.work.tokens / each.work.seconds for each in (before, after))
        self._differ.append(rates[1] / rates[0])
        temperature = turn.sampling.temperature
        plain = between(before.work, after.work)
        equal = written.tokens == before.tokens
        for drafter, each in ((PLAIN, before), (name, written)):
            cell = self._cells.setdefault((drafter, turn.kind, temperature), Cell())
            cell.add(turn.prompt, each, each.work if drafter == PLAIN else plain, equal)
        self._tell([PLAIN, name], turn.kind, temperature)

    @property
    def noise(self) -> Noise:
        spread = median(self._differ) if self._differ else 1.0
        return Noise(spread, sum(self._busy) / len(self._busy) if self._busy else 0.0)

    def _tell(self, names: Sequence[str], kind: str = "", temperature: float = 0.0) -> None:
        self._updated = perf_counter()
        rows = rows_of(self._cells, [kind], [temperature], names)
        if len(self._kinds) > 1:
            rows += [row for row in rows_of(self._cells, self._kinds, [temperature], names) if row.kind == ALL_KINDS]
        drafter, now = self._now
        self._on_update(
            BenchUpdate(
                model=self._model,
                drafters=tuple(self.drafters),
                drafter=drafter,
                kind=now,
                share=self.estimate.share,
                left=self.estimate.left(),
                rows=tuple(rows),
                noise=self.noise,
            )
        )


def compare_drafters(
    request: Load,
    plan: ReplyPlan,
    tell: Callable[[str], None],
    memory_steps: int = 0,
    stop: Callable[[], bool] = never,
    on_update: Callable[[BenchUpdate], None] = lambda _: None,
) -> DrafterReport:
    """Writes every reply with every drafter: plain, a drafter, plain, the next drafter, plain and so on.

    A drafter's reply is compared with the mean of the plain ones before and after it, so that a change of the machine's
    speed affects both alike. The order of the drafters changes from turn to turn. With ``memory_steps``, the memory of
    each is measured in a separate process that writes so many tokens. Once ``stop`` is true, the report covers the
    turns that all drafters have written; without any, ``Stopped`` is raised.
    """

    def report(line: str) -> None:
        tell(f"drafters: {line}")

    with session_of(request) as (session, loaded):
        pace: dict[str, float] = {}

        def warmed(name: str, written: WrittenReply) -> None:
            pace[name] = written.work.seconds / written.work.tokens
            report(f"warmed up {name}")

        usable, unusable = usable_drafters(session, loaded, plan.names, warmed)
        estimate = Estimate(turn_of(usable), plan.tokens)
        estimate.pace |= pace
        meter = BenchMeter(loaded.title, plan, usable, estimate, on_update)
        cells, counts = measure(
            plan, loaded.n_ctx, meter, lambda name, turn: write(session, name, turn, stop, meter.on_step), report
        )
    rows = rows_of(cells, [kind.name for kind in plan.sets], plan.temperatures, (PLAIN, *usable))
    drafted = [row for row in rows if row.drafter != PLAIN and row.kind != ALL_KINDS]
    memory = {}
    if memory_steps and not stop():
        memory = drafter_memory(request, (PLAIN, *usable), memory_steps, tell)
    return DrafterReport(
        model=loaded.title,
        promise=loaded.promise,
        rows=rows,
        best=best_fixed(cells),
        unusable=unusable,
        prompts={name: replied for name, (replied, _) in counts.items()},
        too_long={name: long for name, (_, long) in counts.items()},
        seeds=list(plan.seeds),
        reply=plan.tokens,
        typical=plan.typical,
        equal_texts=sum(row.equal_texts for row in drafted),
        texts=sum(row.texts for row in drafted),
        memory_mb=memory,
        noise=meter.noise,
        stopped=stop(),
    )


def measure(
    plan: ReplyPlan,
    context: int,
    meter: BenchMeter,
    write_with: Callable[[str, BenchTurn], WrittenReply],
    tell: Callable[[str], None],
) -> tuple[Cells, dict[str, tuple[int, int]]]:
    """Plays a plan, each drafter's reply between two plain ones; returns the cells, and the counts of ``play``."""
    cells: dict[tuple[str, str, float], Cell] = {}
    turns = 0

    def reply(turn: BenchTurn) -> WrittenReply:
        nonlocal turns
        shift = turns % max(1, len(meter.drafters))
        order = [*meter.drafters[shift:], *meter.drafters[:shift]]
        turns += 1

        def written_by(name: str) -> WrittenReply:
            meter.begin(name, turn)
            written = write_with(name, turn)
            meter.end(name, written)
            return written

        def add(name: str, written: WrittenReply, baseline: TimedTokens) -> None:
            cell = cells.setdefault((name, turn.kind, turn.sampling.temperature), Cell())
            cell.add(turn.prompt, written, baseline, written.tokens == plain[0].tokens)

        plain, drafted = [written_by(PLAIN)], list[WrittenReply]()
        for name in order:
            drafted.append(written_by(name))
            plain.append(written_by(PLAIN))
            meter.compare(turn, name, plain[-2], drafted[-1], plain[-1])
        for at, (name, written) in enumerate(zip(order, drafted, strict=True)):  # after all have written it
            add(name, written, between(plain[at].work, plain[at + 1].work))
        for written in plain:
            add(PLAIN, written, written.work)
        return plain[0]

    return cells, play(plan, context, tell, meter.estimate, reply)


def drafter_memory(
    request: Load, drafters: Sequence[str], steps: int, tell: Callable[[str], None]
) -> dict[str, float | None]:
    """Measures each drafter in a child process, which runs this file; None if it failed, which ``tell`` reports.

    It is the peak of resident memory in MB of 1,000,000 bytes, including Python and the model's file, without a GPU's
    memory.
    """
    found: dict[str, float | None] = {}
    for name in drafters:
        tell(f"drafters: memory of {name}")
        load = json.dumps(asdict(replace(request, drafter=name, chats=None)))
        child = run_child(["-m", "slipstream.app.bench.drafters", load, str(steps)], _PATIENCE_S)
        if child.returncode:
            lines = child.stderr.decode("utf-8", "replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), f"exit code {child.returncode}")
            tell(f"drafters: memory of {name} could not be measured: {last}")
        found[name] = None if child.returncode else int(child.stdout) / 1e6
    return found


def _child(request: str, steps: str) -> None:
    load: Load = built(Load, json.loads(request))
    with ExitStack() as opened:
        try:  # without the draft model if the drafter does not need it
            session, _ = opened.enter_context(session_of(replace(load, draft_model=None)))
        except UsageError:
            session, _ = opened.enter_context(session_of(load))
        write(session, load.drafter, hello(int(steps)))
        print(peak_bytes())


if __name__ == "__main__":
    end_with_parent()
    try:
        _child(*sys.argv[1:])
    except SlipstreamError as error:
        sys.exit(error.title)
