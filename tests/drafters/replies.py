"""Replies with a drafter: of a target that computes nothing, or of a model."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.models.fake_target import FakeTarget

from slipstream.app.engine.loop import generate
from slipstream.app.engine.stats import PlainClock, ReplyStats
from slipstream.app.engine.stopping import FixedBudget, StopRules
from slipstream.drafters.base import Drafter, ShouldExtend, Step
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 1, 4, 1]


def always(path: float, depth: int) -> bool:
    return True


def three(_probability: float, depth: int) -> bool:
    return depth <= 3


def steps_of(
    drafter: Drafter,
    target: FakeTarget,
    sampler: Sampler,
    should_extend: ShouldExtend | None = None,
    size: int = 150,
    *,
    prompt: Sequence[Token] = PROMPT,
    least: float = 0.5,
) -> Iterator[tuple[Step, History]]:
    history = History(list(prompt))
    rules = StopRules(frozenset(), target.abilities.n_ctx - len(prompt), size, (), lambda token: b"")
    budget = FixedBudget(rules, least=least)
    target.prefill(prompt[:-1])
    drafter.begin(history)
    for step in generate(target, drafter, sampler, history, should_extend or budget, rules, lambda: False):
        budget.add(step)
        yield step, history


def text_of(
    drafter: Drafter, target: FakeTarget, sampler: Sampler, should_extend: ShouldExtend | None = None
) -> list[Token]:
    return [token for step, _ in steps_of(drafter, target, sampler, should_extend) for token in step.tokens]


def write(
    drafter: Drafter, target: FakeTarget, sampler: Sampler, size: int = 120, **more: Any
) -> tuple[list[Token], ReplyStats]:
    text, stats = list[Token](), ReplyStats(PlainClock())
    for step, history in steps_of(drafter, target, sampler, size=size, **more):
        stats.add(step, 1.0)
        text += step.tokens
        assert list(target.tokens) == history.tokens[:-1]
    return text, stats


def ask(model: LlamaModel, text: str) -> list[Token]:
    """A question as the bundled model's template has it."""
    return model.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", True)


def reply(
    target: Target,
    drafter: Drafter,
    history: History,
    sampler: Sampler = Sampler(temperature=0),  # noqa: B008 (frozen)
    size: int = 30,
    should_extend: ShouldExtend = three,
) -> list[Step]:
    target.request(drafter.needs.hidden)
    drafter.begin(history)
    target.prefill(history.tokens[:-1], lambda chunk: drafter.on_prefill(chunk.tokens, chunk.hidden))
    rules = StopRules(frozenset(), target.abilities.n_ctx - len(history.tokens), size, (), lambda token: b"")
    return list(generate(target, drafter, sampler, history, should_extend, rules, lambda: False))
