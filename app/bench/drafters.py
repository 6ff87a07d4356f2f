"""Part ``drafters``: drafting methods on one model, each reply between two plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from slipstream.app.bench.drafter_memory import drafter_memory
from slipstream.app.bench.figures import Cell, DrafterReport, best_fixed
from slipstream.app.bench.intervals import Work, between
from slipstream.app.bench.plan import Plan
from slipstream.app.bench.stopping import never
from slipstream.app.bench.turns import Turn, Written, play, session_of, usable_drafters, write
from slipstream.app.engine.requests import Load
from slipstream.drafters.none import Plain


def compare_drafters(
    request: Load, plan: Plan, tell: Callable[[str], None], memory_steps: int = 0, stop: Callable[[], bool] = never
) -> DrafterReport:
    """Writes every reply with every drafter: plain, a drafter, plain, the next drafter, plain and so on.

    A drafter's reply is compared with the mean of the plain ones before and after it, so that a machine that gets
    slower or faster on the way hits both alike. Who comes first changes from turn to turn.

    Args:
        request: Which model.
        plan: Which replies.
        tell: Hears how far it is.
        memory_steps: Tokens that are written to measure each drafter's memory, in a process of its own that loads the
            model again; 0 leaves that out.
        stop: Asked step by step; the report is then of the turns that were written by all.

    Raises:
        Stopped: If there are none.
        UsageError: If none of the drafters can serve.
        SlipstreamError: If the model cannot be loaded, or takes none of the prompts.
    """
    with session_of(request) as (session, loaded):
        usable, unusable = usable_drafters(session, loaded, plan.names)
        cells, counts = measure(
            plan,
            loaded.n_ctx,
            usable,
            lambda name, turn: write(session, name, turn, stop),
            lambda line: tell(f"drafters: {line}"),
        )
    keys = product([kind.name for kind in plan.sets], plan.temperatures, (Plain.name, *usable))
    rows = [
        cells[name, kind, temperature].figures(name, kind, temperature)
        for kind, temperature, name in keys
        if (name, kind, temperature) in cells
    ]
    drafted = [row for row in rows if row.drafter != Plain.name]
    memory = {}
    if memory_steps and not stop():
        memory = drafter_memory(request, (Plain.name, *usable), memory_steps, tell)
    return DrafterReport(
        model=loaded.name,
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
        stopped=stop(),
    )


def measure(
    plan: Plan,
    context: int,
    drafters: Sequence[str],
    write_with: Callable[[str, Turn], Written],
    tell: Callable[[str], None],
) -> tuple[dict[tuple[str, str, float], Cell], dict[str, tuple[int, int]]]:
    """Plays a plan, each drafter's reply between two plain ones.

    Args:
        plan: What to play.
        context: Tokens that fit the model's context.
        drafters: Names of those that can serve, without plain decoding.
        write_with: Writes a turn with the drafter of a name.
        tell: Hears how far it is.

    Returns:
        What is summed by drafter, kind of text and temperature; and what ``turns.play`` counted.
    """
    cells: dict[tuple[str, str, float], Cell] = {}
    turns = 0

    def reply(turn: Turn) -> Written:
        nonlocal turns
        shift = turns % max(1, len(drafters))
        order = [*drafters[shift:], *drafters[:shift]]
        turns += 1
        plain, drafted = interleaved(lambda name: write_with(name, turn), order)

        def add(name: str, written: Written, beside: Work) -> None:
            cell = cells.setdefault((name, turn.kind, turn.sampling.temperature), Cell())
            cell.add(turn.prompt, written, beside, written.tokens == plain[0].tokens)

        for at, (name, written) in enumerate(zip(order, drafted, strict=True)):
            add(name, written, between(plain[at].work, plain[at + 1].work))
        for written in plain:
            add(Plain.name, written, written.work)
        return plain[0]

    return cells, play(plan, context, tell, reply)


def interleaved(write_with: Callable[[str], Written], drafters: Sequence[str]) -> tuple[list[Written], list[Written]]:
    """Writes plainly, with a drafter, plainly, with the next drafter, plainly, and so on.

    Args:
        write_with: Writes a reply with the drafter of a name.
        drafters: Their names.

    Returns:
        The plain replies, one more than there are drafters, and the drafters' replies.
    """
    plain, drafted = [write_with(Plain.name)], list[Written]()
    for name in drafters:
        drafted.append(write_with(name))
        plain.append(write_with(Plain.name))
    return plain, drafted
