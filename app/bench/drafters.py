"""Part ``drafters``: drafting methods on one model, each reply between two plain ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Final

from slipstream.app.bench.drafter_memory import drafter_memory
from slipstream.app.bench.figures import BestFixed, DrafterFigures, DrafterReport
from slipstream.app.bench.intervals import Paired, Ratio, Work, advantage, between, measured
from slipstream.app.bench.plan import Plan
from slipstream.app.bench.stopping import never
from slipstream.app.bench.turns import Turn, Written, play, session_of, usable_drafters, write
from slipstream.app.protocol import AUTO, PLAIN, Load
from slipstream.drafters.none import Plain
from slipstream.models.types import repeated_share


@dataclass(slots=True)
class Cell:
    """What is summed for one row."""

    # per prompt: the sums of its replies and of the plain ones beside them
    pairs: dict[int, Paired] = field(default_factory=dict)
    replies: list[Written] = field(default_factory=list)  # all replies
    equal: int = 0  # how many were plain decoding's, token for token

    def add(self, prompt: int, written: Written, plain: Work, equal: bool) -> None:
        """Takes a reply, and what plain decoding took at that time."""
        pair = Paired(written.work, plain)
        self.pairs[prompt] = self.pairs[prompt] + pair if prompt in self.pairs else pair
        self.replies.append(written)
        self.equal += equal

    @property
    def by_prompt(self) -> list[Paired]:
        """The sums of each prompt, in the order of the set."""
        return [self.pairs[at] for at in sorted(self.pairs)]

    def figures(self, drafter: str, kind: str, temperature: float) -> DrafterFigures:
        speeds = [written.done.speed for written in self.replies]
        drafted, steps = sum(speed.drafted for speed in speeds), sum(speed.steps for speed in speeds)
        tokens = sum(speed.tokens for speed in speeds)
        phases: dict[str, float] = {}
        for written in self.replies:
            for name, ms in written.done.phases.items():
                phases[name] = phases.get(name, 0.0) + ms * written.done.speed.steps / steps
        return DrafterFigures(
            drafter=drafter,
            kind=kind,
            temperature=temperature,
            tok_per_s=tokens / sum(written.work.seconds for written in self.replies),
            speedup=Ratio(1.0) if drafter == PLAIN else measured(self.by_prompt),
            by_prompt=[pair.speedup for pair in self.by_prompt],
            tokens_per_step=tokens / steps,
            acceptance=sum(speed.accepted for speed in speeds) / drafted if drafted else None,
            by_depth=_by_depth([written.done.by_depth for written in self.replies]),
            phases=phases,
            first_token_ms=median(written.done.ttft_ms for written in self.replies),
            tokens=tokens,
            equal_texts=self.equal,
            texts=len(self.replies),
            repeated=sum(len(written.tokens) * repeated_share(written.tokens) for written in self.replies)
            / sum(len(written.tokens) for written in self.replies),
        )


ALL_KINDS: Final = "all of these"  # stands for all kinds of text together

Cells = Mapping[tuple[str, str, float], Cell]  # by drafter, kind of text and temperature


def best_fixed(cells: Cells) -> list[BestFixed]:
    """Finds, for each kind of text and temperature, the fixed choice that was best, and how the autopilot compares.

    Where there are several kinds, a last row for each temperature takes the prompts of all of them: no fixed choice is
    the best for every kind.
    """
    kinds = list(dict.fromkeys(kind for _, kind, _ in cells))
    temperatures = list(dict.fromkeys(temperature for _, _, temperature in cells))
    found = []
    for chosen in (*([kind] for kind in kinds), *([kinds] if len(kinds) > 1 else [])):
        for temperature in temperatures:
            pairs: dict[str, dict[tuple[str, int], Paired]] = {}
            for (drafter, kind, at), cell in cells.items():
                if kind in chosen and at == temperature:
                    pairs.setdefault(drafter, {}).update({(kind, prompt): pair for prompt, pair in cell.pairs.items()})
            if pairs:
                found.append(_best(ALL_KINDS if len(chosen) > 1 else chosen[0], temperature, pairs))
    return found


def _best(kind: str, temperature: float, pairs: Mapping[str, Mapping[tuple[str, int], Paired]]) -> BestFixed:
    """The best fixed choice by the sums of each prompt, and the autopilot against it."""
    plain = {place: Paired(pair.plain, pair.plain) for place, pair in pairs[PLAIN].items()}  # its own measure
    fixed = {PLAIN: plain} | {name: own for name, own in pairs.items() if name not in (PLAIN, AUTO)}
    ratios = {name: ratio for name, own in fixed.items() if (ratio := measured(list(own.values())))}
    ratios[PLAIN] = Ratio(1.0)
    best = max(ratios, key=lambda name: ratios[name].value)
    auto, over = pairs.get(AUTO), None
    if auto:
        both = sorted(auto.keys() & fixed[best].keys())
        over = advantage([auto[place] for place in both], [fixed[best][place] for place in both])
    return BestFixed(kind, temperature, best, ratios[best], measured(list(auto.values())) if auto else None, over)


def _by_depth(counted: Sequence[Sequence[Sequence[int]]]) -> list[float | None]:
    """Acceptance at each depth, from the counts [reached, accepted] of every reply."""
    depths = max(map(len, counted), default=0)
    reached, accepted = [0] * depths, [0] * depths
    for reply in counted:
        for at, (seen, taken) in enumerate(reply):
            reached[at] += seen
            accepted[at] += taken
    return [a / r if r else None for a, r in zip(accepted, reached, strict=True)]


def compare_drafters(
    request: Load, plan: Plan, tell: Callable[[str], None], memory_steps: int = 0, stop: Callable[[], bool] = never
) -> DrafterReport:
    """Writes every reply with every drafter: plain, a drafter, plain, the next drafter, plain and so on.

    A drafter's reply is compared with the mean of the plain ones before and after it, so that a machine that gets
    slower or faster on the way hits both alike. The order changes from turn to turn.

    Args:
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
        context: Tokens that fit the model's context.
        drafters: Names of those that can serve, without plain decoding.
        write_with: Writes a turn with the drafter of a name.

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

    Returns:
        The plain replies, one more than there are drafters, and the drafters' replies.
    """
    plain, drafted = [write_with(Plain.name)], list[Written]()
    for name in drafters:
        drafted.append(write_with(name))
        plain.append(write_with(Plain.name))
    return plain, drafted
