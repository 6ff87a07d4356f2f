"""Sums over replies, and the rows and best choices computed from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median

from slipstream.app.bench.figures import ALL_KINDS, BestFixed, DrafterFigures
from slipstream.app.bench.intervals import Interval, Paired, Work, advantage, measured
from slipstream.app.bench.turns import Written
from slipstream.app.protocol.requests import AUTO, PLAIN
from slipstream.models.types import repeated_share


@dataclass(slots=True)
class Cell:
    """The sums of one row."""

    # per prompt: the sums of its replies and of the adjacent plain ones
    pairs: dict[int, Paired] = field(default_factory=dict)
    replies: list[Written] = field(default_factory=list)
    equal: int = 0  # number of replies that equal plain decoding's, token for token

    def add(self, prompt: int, written: Written, plain: Work, equal: bool) -> None:
        """Adds a reply, and the work of plain decoding at that time."""
        pair = Paired(written.work, plain)
        self.pairs[prompt] = self.pairs[prompt] + pair if prompt in self.pairs else pair
        self.replies.append(written)
        self.equal += equal

    @staticmethod
    def of_all(cells: Iterable[Cell]) -> Cell:
        """Merges the cells of several kinds of text."""
        every = Cell()
        for cell in cells:
            first = len(every.pairs)
            every.pairs |= {first + at: pair for at, pair in enumerate(cell.by_prompt)}
            every.replies += cell.replies
            every.equal += cell.equal
        return every

    @property
    def drafted(self) -> int:
        return sum(written.done.speed.drafted for written in self.replies)

    @property
    def by_prompt(self) -> list[Paired]:
        """The sums of each prompt, in the order of the set."""
        return [self.pairs[at] for at in sorted(self.pairs)]

    def figures(self, drafter: str, kind: str, temperature: float) -> DrafterFigures:
        speeds = [written.done.speed for written in self.replies]
        drafted, steps = self.drafted, sum(speed.steps for speed in speeds)
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
            speedup=Interval(1.0) if drafter == PLAIN else measured(self.by_prompt),
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


Cells = Mapping[tuple[str, str, float], Cell]
"""By drafter, kind of text and temperature."""


def best_fixed(cells: Cells) -> list[BestFixed]:
    """Compares the autopilot with the best fixed choice, for each kind of text and temperature.

    With several kinds, a last row for each temperature covers all their prompts: no fixed choice is best for all kinds.
    """
    kinds = list(dict.fromkeys(kind for _, kind, _ in cells))
    temperatures = list(dict.fromkeys(temperature for _, _, temperature in cells))
    found = []
    for chosen in (*([kind] for kind in kinds), *([kinds] if len(kinds) > 1 else [])):
        for temperature in temperatures:
            pairs: dict[str, dict[tuple[str, int], Paired]] = {}
            drafting = set[str]()
            for (drafter, kind, at), cell in cells.items():
                if kind in chosen and at == temperature:
                    pairs.setdefault(drafter, {}).update({(kind, prompt): pair for prompt, pair in cell.pairs.items()})
                    drafting |= {drafter} if cell.drafted else set()
            if pairs:
                name = ALL_KINDS if len(chosen) > 1 else chosen[0]
                found.append(_best(name, temperature, pairs, pairs.keys() - drafting))
    return found


def _best(
    kind: str, temperature: float, pairs: Mapping[str, Mapping[tuple[str, int], Paired]], idle: Collection[str]
) -> BestFixed:
    """Finds the best fixed choice, without the ``idle`` drafters, and compares the autopilot with it."""
    plain = {place: Paired(pair.plain, pair.plain) for place, pair in pairs[PLAIN].items()}  # its own baseline
    fixed = {PLAIN: plain} | {name: own for name, own in pairs.items() if name not in (PLAIN, AUTO, *idle)}
    ratios = {name: ratio for name, own in fixed.items() if (ratio := measured(list(own.values())))}
    ratios[PLAIN] = Interval(1.0)
    best = max(ratios, key=lambda name: ratios[name].value)
    auto, over = pairs.get(AUTO), None
    if auto:
        both = sorted(auto.keys() & fixed[best].keys())
        over = advantage([auto[place] for place in both], [fixed[best][place] for place in both])
    return BestFixed(kind, temperature, best, ratios[best], measured(list(auto.values())) if auto else None, over)


def rows_of(
    cells: Cells, kinds: Sequence[str], temperatures: Sequence[float], drafters: Sequence[str]
) -> list[DrafterFigures]:
    """A row for each kind of text, temperature and drafter; with several kinds, also rows over all of them."""
    rows = []
    for kind in (*kinds, *([ALL_KINDS] if len(kinds) > 1 else [])):
        parts = kinds if kind == ALL_KINDS else [kind]
        for temperature, name in product(temperatures, drafters):
            found = [cells[key] for part in parts if (key := (name, part, temperature)) in cells]
            if found:
                rows.append(Cell.of_all(found).figures(name, kind, temperature))
    return rows


def _by_depth(counted: Sequence[Sequence[Sequence[int]]]) -> list[float | None]:
    """Acceptance at each depth, from the counts [reached, accepted] of every reply."""
    depths = max(map(len, counted), default=0)
    reached, accepted = [0] * depths, [0] * depths
    for reply in counted:
        for at, (seen, taken) in enumerate(reply):
            reached[at] += seen
            accepted[at] += taken
    return [a / r if r else None for a, r in zip(accepted, reached, strict=True)]
