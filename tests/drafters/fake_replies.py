"""Replies of a target that computes nothing, with a drafter."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.fake_target import FakeTarget

from slipstream.app.engine.loop import generate
from slipstream.app.engine.stopping import FixedBudget, StopRules
from slipstream.drafters.base import Drafter, ShouldExtend, Step
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 1, 4, 1]


def always(path: float, depth: int) -> bool:
    return True


def steps_of(
    drafter: Drafter, target: FakeTarget, sampler: Sampler, should_extend: ShouldExtend | None = None, size: int = 150
) -> Iterator[tuple[Step, History]]:
    history = History(list(PROMPT))
    rules = StopRules(frozenset(), target.abilities.n_ctx - len(PROMPT), size, (), lambda token: b"")
    budget = FixedBudget(rules)
    target.prefill(PROMPT[:-1])
    drafter.begin(history)
    for step in generate(target, drafter, sampler, history, should_extend or budget, rules, lambda: False):
        budget.step += 1
        yield step, history


def text_of(
    drafter: Drafter, target: FakeTarget, sampler: Sampler, should_extend: ShouldExtend | None = None
) -> list[Token]:
    return [token for step, _ in steps_of(drafter, target, sampler, should_extend) for token in step.tokens]
