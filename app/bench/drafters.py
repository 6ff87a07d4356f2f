"""Part ``drafters``: every drafter on the bundled model, plain decoding in turn with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from slipstream.app.bench.clocks import Spread
from slipstream.app.engine.loading import load
from slipstream.app.engine.protocol import Done, Generate, Load, Message, Sampling
from slipstream.app.engine.session import Session
from slipstream.drafters import registry
from slipstream.drafters.none import Plain

PROMPTS: Final = (
    ("chat", "What is a good way to spend a rainy afternoon at home?"),
    ("story", "Tell me a story about a little girl and a boat on the sea."),
    (
        "copy",
        "Repeat this text, word for word: The old man walked to the sea every day. He looked at the boats and the"
        " birds. One day he saw a small boat with a red sail, and he walked to the boat with the red sail.",
    ),
)
"""Kinds of text and a prompt for each."""


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """One drafter on one kind of text at one temperature; sums are over the seeds.

    Attributes:
        drafter: Its name.
        kind: The kind of text.
        temperature: Of the sampling.
        speedup: Tokens a second over plain decoding's on the same prompt and seed, round by round.
        tokens_per_step: Tokens emitted a step.
        acceptance: Accepted over drafted tokens; None if nothing was drafted.
        by_depth: Acceptance at each depth from 1, None where no step got there.
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
        equal_texts: Replies that were the same as plain decoding's.
        texts: Replies written with a drafter.
    """

    model: str
    promise: str
    plain_tok_per_s: Spread
    rows: list[DrafterFigures]
    unusable: dict[str, str]
    equal_texts: int
    texts: int


@dataclass(slots=True)
class _Cell:
    """What is summed for one row."""

    pairs: list[tuple[Done, Done]] = field(default_factory=list)

    def figures(self, drafter: str, kind: str, temperature: float) -> DrafterFigures:
        speeds = [done.speed for done, _ in self.pairs]
        drafted = sum(speed.drafted for speed in speeds)
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
            tokens_per_step=sum(speed.tokens for speed in speeds) / sum(speed.steps for speed in speeds),
            acceptance=sum(speed.accepted for speed in speeds) / drafted if drafted else None,
            by_depth=[a / r if r else None for a, r in zip(accepted, reached, strict=True)],
            tokens=sum(speed.tokens for speed in speeds),
            equal_texts=sum(done.text == plain.text and done.tokens == plain.tokens for done, plain in self.pairs),
            texts=len(self.pairs),
        )


@contextmanager
def session_of(request: Load) -> Iterator[tuple[Session, str, str, list[str], dict[str, str]]]:
    """Loads a model as the engine does.

    Yields:
        The session, the model's name, the promise, its usable drafters, the others and why they are not.
    """
    session, loaded = load(request, lambda _share: None)
    try:
        usable = [offer.name for offer in loaded.drafters if offer.usable]
        rest = {offer.name: offer.why_not for offer in loaded.drafters if not offer.usable}
        yield session, loaded.name, loaded.promise, usable, rest
    finally:
        session.close()


def compare_drafters(
    request: Load,
    temperatures: Sequence[float],
    seeds: Sequence[int],
    reply: int,
    tell: Callable[[str], None],
    prompts: Sequence[tuple[str, str]] = PROMPTS,
) -> DrafterReport:
    """Writes the same replies with every drafter, one after the other, so that a slow minute hits them all.

    Args:
        request: Which model.
        temperatures: Of the sampling.
        seeds: One round each.
        reply: Most tokens of a reply.
        tell: Hears how far it is.
        prompts: Kinds of text and a prompt for each.
    """
    cells: dict[tuple[str, str, float], _Cell] = {}
    plain_speeds: list[float] = []
    with session_of(request) as (session, name, promise, usable, unusable):
        rounds = list(product(seeds, temperatures, prompts))
        names = [other for other in usable if other != Plain.name]
        _reply(session, Plain.name, prompts[0][1], 0.0, 0, reply)  # warms up
        for turn, (seed, temperature, (kind, prompt)) in enumerate(rounds):
            tell(f"drafters: {kind}, temperature {temperature:g}, seed {seed} ({turn + 1} of {len(rounds)})")
            order = [Plain.name, *names]
            shift = turn % len(order)  # nobody is always first
            replies = {
                drafter: _reply(session, drafter, prompt, temperature, seed, reply)
                for drafter in order[shift:] + order[:shift]
            }
            plain = replies[Plain.name]
            plain_speeds.append(plain.speed.tok_per_s)
            for drafter in names:
                cells.setdefault((drafter, kind, temperature), _Cell()).pairs.append((replies[drafter], plain))
    rank = {drafter: at for at, drafter in enumerate(registry.METHODS)}
    rows = [cells[key].figures(*key) for key in sorted(cells, key=lambda key: rank[key[0]])]
    return DrafterReport(
        model=name,
        promise=promise,
        plain_tok_per_s=Spread.of(plain_speeds),
        rows=rows,
        unusable=unusable,
        equal_texts=sum(row.equal_texts for row in rows),
        texts=sum(row.texts for row in rows),
    )


def _reply(session: Session, drafter: str, prompt: str, temperature: float, seed: int, reply: int) -> Done:
    request = Generate(
        request=1,
        messages=[Message("user", prompt)],
        sampling=Sampling(temperature=temperature, seed=seed),
        drafter=drafter,
        max_tokens=reply,
    )
    return session.reply(request, lambda _event: None, lambda: False)
