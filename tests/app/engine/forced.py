"""A drafter that knows the text: always right, always wrong, or wrong at any place; and a reply without a session."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from slipstream.app.engine.loop import generate
from slipstream.app.engine.session import Session
from slipstream.app.engine.stopping import FixedBudget, StopRules
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Abilities, Evaluation, History, Token

_TIE: Final = 1e-3
"""Logits may differ by 1e-5 with F32 weights; a token that changes where none moved by this much is an error."""


class Endless:
    """A vocabulary in which no token ends a reply, so that all replies are of the length that is asked for."""

    ends = frozenset[Token]()

    def __init__(self, session: Session) -> None:
        self.piece = session.model.vocabulary.piece


class Forced(Drafter):
    """Drafts a known reply, of which it skips some tokens, and goes on past its end with other ones. A share of drafts
    is right as a whole, the others have a wrong token at a place of their own; wrong branches stand before the right
    one."""

    name = "forced"

    def __init__(
        self, text: Sequence[Token], abilities: Abilities, right: float, depth: int = 5, width: int = 1, skip: int = 0
    ) -> None:
        self._text, self._right, self._depth, self._skip = [*text], right, depth, skip
        self._abilities = abilities
        self._width = min(width, max(1, abilities.max_leaves))
        self._start = 0

    def begin(self, history: History) -> None:
        self._start = len(history.tokens)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        at = len(history.tokens) - self._start
        room = min(self._abilities.n_ctx - len(history.tokens), self._abilities.max_rows - 1)
        if at < self._skip or room < 1 or not self._abilities.max_leaves:
            return NO_DRAFT
        rng = random.Random(at)
        tokens = self._text[at : at + self._depth]
        tokens += [self._other(7 + len(tokens))] * (self._depth - len(tokens))
        if rng.random() >= self._right:
            place = rng.randrange(self._depth) if self._right else 0
            tokens[place] = self._other(tokens[place])
        tokens = tokens[:room]
        if self._width == 1 or len(tokens) + 2 * self._width > room:
            return chain_draft(tokens, [0.5] * len(tokens), self.name)
        builder = TreeBuilder()
        builder.add_path(tokens, [0.5] * len(tokens), self.name)
        for branch in range(1, self._width):  # more probable, so that they come first; some part ways late
            shared = 0 if branch == 1 else rng.randrange(self._depth)
            wrong = self._other(tokens[shared] + branch)
            if wrong != tokens[shared]:
                builder.add_path([*tokens[:shared], wrong, 9], [0.5] * shared + [0.9, 0.9], self.name)
        return builder.build()

    def _other(self, token: Token) -> Token:
        return (token + 1) % self._abilities.n_vocab


def write(
    target: Target, drafter: Drafter, sampler: Sampler, prompt: Sequence[Token], size: int
) -> tuple[list[Token], list[Step]]:
    """Writes tokens after a prompt, as a session would; nothing ends the reply but its length. Steps lose their
    evaluations."""
    history = History(list(prompt))
    rules = StopRules(frozenset(), target.abilities.n_ctx - len(prompt), size, (), lambda token: b"")
    budget = FixedBudget(rules)
    target.request(drafter.needs.hidden)
    drafter.begin(history)
    target.prefill(prompt[:-1], lambda chunk: drafter.on_prefill(chunk.tokens, chunk.hidden))
    steps = list[Step]()
    for step in generate(target, drafter, sampler, history, budget, rules, lambda: False):
        budget.add(step)
        steps.append(replace(step, evaluation=Evaluation(step.evaluation.logits[:0])))
        assert list(target.tokens) == history.tokens[:-1]
    return history.tokens[len(prompt) :], steps


def check_same(
    target: Target, sampler: Sampler, prompt: Sequence[Token], plain: Sequence[Token], text: Sequence[Token]
) -> None:
    """Equal, or different from a place on where a tiny change of two logits changes the plain draw to the other."""
    if list(text) == list(plain):
        return
    at = next(i for i, (one, other) in enumerate(zip(plain, text, strict=True)) if one != other)
    target.prefill([*prompt, *plain[:at]][:-1])
    history = History([*prompt, *plain[:at]])
    logits = target.evaluate(history.tokens[-1]).logits[0].copy()
    target.keep(())
    assert sampler.pick(logits, history) == plain[at]
    logits[plain[at]] -= np.float32(_TIE)
    logits[text[at]] += np.float32(_TIE)
    assert sampler.pick(logits, history) == text[at], f"token {at} differs, and there is no tie"
