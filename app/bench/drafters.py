"""Part ``drafters``: compares drafting methods on one model; each reply is written between two plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from slipstream.app.bench.cells import Cell, Cells, best_fixed, rows_of
from slipstream.app.bench.drafter_memory import drafter_memory
from slipstream.app.bench.estimate import Estimate
from slipstream.app.bench.figures import ALL_KINDS, DrafterReport, Noise
from slipstream.app.bench.intervals import Work, between
from slipstream.app.bench.plan import Plan
from slipstream.app.bench.progress import EVERY, Update
from slipstream.app.bench.stopping import never
from slipstream.app.bench.turns import Turn, Written, play, session_of, usable_drafters, write
from slipstream.app.protocol.requests import PLAIN, Load


def ignore(_: Update) -> None:
    """Ignores an update."""


def turn_of(drafters: Sequence[str]) -> list[str]:
    """The drafters of a turn: each writes between two replies of plain decoding."""
    return [PLAIN, *(name for drafter in drafters for name in (drafter, PLAIN))]


class Meter:
    """Tracks a measurement: the time left, the noise, and the rows so far."""

    def __init__(
        self, model: str, plan: Plan, drafters: Sequence[str], estimate: Estimate, on_update: Callable[[Update], None]
    ) -> None:
        self.drafters, self.estimate = drafters, estimate
        self._model, self._kinds, self._on_update = model, [kind.name for kind in plan.sets], on_update
        self._cells: dict[tuple[str, str, float], Cell] = {}
        self._now = ("", "")  # drafter and kind of text
        self._updated = 0.0
        self._differ: list[float] = []  # ratios of the speeds of two successive plain replies to the same prompt
        self._busy: list[bool] = []  # whether each of plain decoding's replies was disturbed

    def begin(self, name: str, turn: Turn) -> None:
        self._now = (name, turn.kind)
        self.estimate.reply(name)

    def on_tokens(self, tokens: int) -> None:
        self.estimate.wrote(tokens)
        if perf_counter() > self._updated + EVERY:
            self._tell([])

    def end(self, name: str, written: Written) -> None:
        self.estimate.end(len(written.tokens))
        if name == PLAIN:
            self._busy.append(written.done.speed.busy)

    def compare(self, turn: Turn, name: str, before: Written, written: Written, after: Written) -> None:
        """Adds a reply and the plain ones before and after it; reports the changed rows."""
        rates = sorted(each.work.tokens / each.work.seconds for each in (before, after))
        self._differ.append(rates[1] / rates[0])
        temperature = turn.sampling.temperature
        plain = between(before.work, after.work)
        equal = written.tokens == before.tokens
        for drafter, each in ((PLAIN, before), (name, written)):
            cell = self._cells.setdefault((drafter, turn.kind, temperature), Cell())
            cell.add(turn.prompt, each, each.work if drafter == PLAIN else plain, equal)
        self._tell([name], turn.kind, temperature)

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
        share, left = self.estimate.share, self.estimate.left()
        self._on_update(Update(self._model, tuple(self.drafters), drafter, now, share, left, tuple(rows), self.noise))


def compare_drafters(
    request: Load,
    plan: Plan,
    tell: Callable[[str], None],
    memory_steps: int = 0,
    stop: Callable[[], bool] = never,
    on_update: Callable[[Update], None] = ignore,
) -> DrafterReport:
    """Writes every reply with every drafter: plain, a drafter, plain, the next drafter, plain and so on.

    A drafter's reply is compared with the mean of the plain ones before and after it, so that a change of the machine's
    speed affects both alike. The order of the drafters changes from turn to turn.

    Args:
        memory_steps: Tokens to write when measuring each drafter's memory, in a separate process that loads the model
            again; 0 skips that.
        stop: Called at every step; once it is true, the report covers the turns that all drafters have written.
        on_update: Called with the rows so far and the time left, after each reply and a few times a second.

    Raises:
        Stopped: If there is no such turn.
        UsageError: If none of the drafters works with the model.
        SlipstreamError: If the model cannot be loaded, or no prompt fits it.
    """

    def report(line: str) -> None:
        tell(f"drafters: {line}")

    with session_of(request) as (session, loaded):
        pace: dict[str, float] = {}

        def warmed(name: str, written: Written) -> None:
            pace[name] = written.work.seconds / written.work.tokens
            report(f"warmed up {name}")

        usable, unusable = usable_drafters(session, loaded, plan.names, warmed)
        estimate = Estimate(turn_of(usable), plan.tokens)
        estimate.warm |= pace
        meter = Meter(loaded.title, plan, usable, estimate, on_update)
        cells, counts = measure(
            plan, loaded.n_ctx, meter, lambda name, turn: write(session, name, turn, stop, meter.on_tokens), report
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
    plan: Plan, context: int, meter: Meter, write_with: Callable[[str, Turn], Written], tell: Callable[[str], None]
) -> tuple[Cells, dict[str, tuple[int, int]]]:
    """Plays a plan, each drafter's reply between two plain ones.

    Args:
        context: Size of the model's context in tokens.
        meter: Has the names of the drafters, and tracks every reply.
        write_with: Writes a turn with a drafter, given by name.

    Returns:
        The cells, and the counts of ``turns.play``.
    """
    cells: dict[tuple[str, str, float], Cell] = {}
    turns = 0

    def reply(turn: Turn) -> Written:
        nonlocal turns
        shift = turns % max(1, len(meter.drafters))
        order = [*meter.drafters[shift:], *meter.drafters[:shift]]
        turns += 1

        def written_by(name: str) -> Written:
            meter.begin(name, turn)
            written = write_with(name, turn)
            meter.end(name, written)
            return written

        def add(name: str, written: Written, baseline: Work) -> None:
            cell = cells.setdefault((name, turn.kind, turn.sampling.temperature), Cell())
            cell.add(turn.prompt, written, baseline, written.tokens == plain[0].tokens)

        plain, drafted = [written_by(PLAIN)], list[Written]()
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
