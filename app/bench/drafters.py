"""Part ``drafters``: drafting methods on one model, plain decoding in turn with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product

from slipstream.app.bench.clocks import Spread
from slipstream.app.bench.plan import ALL, Plan
from slipstream.app.bench.prompts import BUILT_IN, Prompt
from slipstream.app.engine.loading import load
from slipstream.app.engine.protocol import Done, Loaded
from slipstream.app.engine.requests import Generate, Load, Sampling
from slipstream.app.engine.session import Session
from slipstream.drafters.none import Plain
from slipstream.models.errors import ContextFullError, UsageError


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """One drafter on one kind of text at one temperature; sums are over prompts and seeds.

    Attributes:
        drafter: Its name.
        kind: The kind of text.
        temperature: Of the sampling.
        speedup: Tokens a second over plain decoding's on the same prompt and seed, round by round.
        tokens_per_step: Tokens emitted a step.
        acceptance: Accepted over drafted tokens; None if nothing was drafted.
        by_depth: Acceptance at each depth from 1, None where no step got there.
        draft_ms: Milliseconds of drafting a step.
        tokens: Tokens emitted.
        equal_texts: Replies that were the same as plain decoding's.
        texts: Replies.
    """

    drafter: str
    kind: str
    temperature: float
    speedup: Spread
    tokens_per_step: float
    acceptance: float | None
    by_depth: list[float | None]
    draft_ms: float
    tokens: int
    equal_texts: int
    texts: int


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """What part ``drafters`` found.

    Attributes:
        model: The model's own name.
        promise: What loading it promised about equal texts.
        plain_tok_per_s: Plain decoding's speed, reply by reply.
        rows: A row for each drafter, kind of text and temperature.
        unusable: Drafters that cannot serve the model, and why.
        prompts: Prompts of each kind of text that were replied to.
        too_long: Prompts of each kind of text that do not fit the context.
        typical: Threshold of typical acceptance where it was on: then texts are not the target's own.
        equal_texts: Replies that were the same as plain decoding's.
        texts: Replies written with a drafter.
    """

    model: str
    promise: str
    plain_tok_per_s: Spread
    rows: list[DrafterFigures]
    unusable: dict[str, str]
    prompts: dict[str, int]
    too_long: dict[str, int]
    typical: float | None
    equal_texts: int
    texts: int


@dataclass(slots=True)
class _Cell:
    """What is summed for one row."""

    pairs: list[tuple[Done, Done]] = field(default_factory=list)

    def figures(self, drafter: str, kind: str, temperature: float) -> DrafterFigures:
        speeds = [done.speed for done, _ in self.pairs]
        drafted, steps = sum(speed.drafted for speed in speeds), sum(speed.steps for speed in speeds)
        depths = max(len(done.by_depth) for done, _ in self.pairs)
        reached, accepted = [0] * depths, [0] * depths
        for done, _ in self.pairs:
            for at, (seen, taken) in enumerate(done.by_depth):
                reached[at] += seen
                accepted[at] += taken
        return DrafterFigures(
            drafter=drafter,
            kind=kind,
            temperature=temperature,
            speedup=Spread.of([done.speed.tok_per_s / plain.speed.tok_per_s for done, plain in self.pairs]),
            tokens_per_step=sum(speed.tokens for speed in speeds) / steps,
            acceptance=sum(speed.accepted for speed in speeds) / drafted if drafted else None,
            by_depth=[a / r if r else None for a, r in zip(accepted, reached, strict=True)],
            draft_ms=sum(done.phases["draft"] * done.speed.steps for done, _ in self.pairs) / steps,
            tokens=sum(speed.tokens for speed in speeds),
            equal_texts=sum(done.text == plain.text and done.tokens == plain.tokens for done, plain in self.pairs),
            texts=len(self.pairs),
        )


@contextmanager
def session_of(request: Load) -> Iterator[tuple[Session, Loaded]]:
    """Loads a model as the engine does, and frees it at the end."""
    session, loaded = load(request, lambda _share: None)
    try:
        yield session, loaded
    finally:
        session.close()


def compare_drafters(request: Load, plan: Plan, tell: Callable[[str], None]) -> DrafterReport:
    """Writes the same replies with every drafter, one after the other, so that a slow minute hits them all.

    Args:
        request: Which model.
        plan: Which replies.
        tell: Hears how far it is.

    Raises:
        SlipstreamError: If the model cannot be loaded, or takes none of the prompts.
    """
    cells: dict[tuple[str, str, float], _Cell] = {}
    plain_speeds: list[float] = []
    too_long: dict[str, set[int]] = {kind.name: set() for kind in plan.sets}
    with session_of(replace(request, drafter=Plain.name)) as (session, loaded):
        usable, unusable = _sorted_out(session, loaded, plan.names)
        order = [Plain.name, *usable]
        rounds = [
            (kind.name, at, prompt, seed, temperature)
            for seed, temperature, kind in product(plan.seeds, plan.temperatures, plan.sets)
            for at, prompt in enumerate(kind.prompts)
        ]
        _reply(session, Plain.name, BUILT_IN[0].prompts[0], Sampling(), plan.tokens)  # warms up
        for turn, (kind, at, prompt, seed, temperature) in enumerate(rounds):
            tell(f"drafters: {kind}, temperature {temperature:g}, seed {seed} ({turn + 1} of {len(rounds)})")
            shift = turn % len(order)  # nobody is always first
            try:
                sampling = Sampling(temperature=temperature, seed=seed, typical=plan.typical)
                replies = {
                    drafter: _reply(session, drafter, prompt, sampling, plan.tokens)
                    for drafter in order[shift:] + order[:shift]
                }
            except ContextFullError:
                too_long[kind].add(at)
                continue
            plain = replies[Plain.name]
            plain_speeds.append(plain.speed.tok_per_s)
            for drafter in usable:
                cells.setdefault((drafter, kind, temperature), _Cell()).pairs.append((replies[drafter], plain))
    if not plain_speeds:
        raise ContextFullError(
            f"none of the prompts fits the context of {loaded.n_ctx:,} tokens.", "Give shorter ones, or another model."
        )
    keys = product(usable, [kind.name for kind in plan.sets], plan.temperatures)
    rows = [cells[key].figures(*key) for key in keys if key in cells]
    return DrafterReport(
        model=loaded.name,
        promise=loaded.promise,
        plain_tok_per_s=Spread.of(plain_speeds),
        rows=rows,
        unusable=unusable,
        prompts={kind.name: len(kind.prompts) - len(too_long[kind.name]) for kind in plan.sets},
        too_long={name: len(places) for name, places in too_long.items()},
        typical=plan.typical,
        equal_texts=sum(row.equal_texts for row in rows),
        texts=sum(row.texts for row in rows),
    )


def _sorted_out(session: Session, loaded: Loaded, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The drafters that serve the model, and the reasons why the others do not."""
    known = {offer.name: offer.why_not for offer in loaded.drafters}
    usable, unusable = list[str](), dict[str, str]()
    for name in dict.fromkeys(one for given in names for one in (known if given == ALL else [given])):
        reason = known.get(name, "")
        if not reason:
            try:
                session.drafter(name)
            except UsageError as error:  # a chain that one of its members keeps from serving
                reason = error.title.rstrip(".")
        if reason:
            unusable[name] = reason
        elif name != Plain.name:
            usable.append(name)
    return usable, unusable


def _reply(session: Session, drafter: str, prompt: Prompt, sampling: Sampling, reply: int) -> Done:
    request = Generate(request=1, messages=list(prompt), sampling=sampling, drafter=drafter, max_tokens=reply)
    return session.reply(request, lambda _event: None, lambda: False)
