"""Drafters are asked a few times before the first reply, to know what that takes.

The first time takes longest: weights come from the disk, and buffers are made. No reply should wait for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Final

from slipstream.app.engine.arm import Arm
from slipstream.drafters.base import NO_DRAFT, Step
from slipstream.models.runtime.target import PrefillChunk, Target
from slipstream.models.sampling import Sampler
from slipstream.models.types import EMPTY_TREE, History, Token

_LENGTH: Final = 40  # tokens of the text; a few more than a draft model takes with its next pass
_SHORT: Final = 8  # the same where the target has to read it
_DEPTHS: Final = (1, 2, 1, 2)


def rehearse(arms: Sequence[Arm], target: Target, plain_ms: float) -> None:
    """Asks drafters that nothing is known of; what they say then means nothing.

    Args:
        arms: The drafters; each has heard of no text afterwards.
        target: What they draft for; its cache is empty afterwards.
        plain_ms: Milliseconds of a pass of one row. No drafter is begun with after half a second and ten such passes.
    """
    until = perf_counter() + 0.5 + 10 * plain_ms / 1e3
    for arm in arms:
        if not arm.hidden and perf_counter() < until:
            for first in (2, 1):  # the first text takes longer
                _begin(arm, History(_text(first, _LENGTH)))
                arm.drafter.draft(History(_text(first, _LENGTH)), arm.limits, Sampler())
            for deepest in _DEPTHS:
                arm.draft(History(_text(1, _LENGTH)), Sampler(), 0, deepest)
    try:
        _with_hidden([arm for arm in arms if arm.hidden], target, until)
    finally:
        target.request(frozenset())
        target.rewind(0)
    for arm in arms:
        arm.drafter.rewind(0)
        arm.rest()


def _with_hidden(arms: Sequence[Arm], target: Target, until: float) -> None:
    """Asks those that need hidden states, which come with passes of the target."""
    if not arms or perf_counter() > until:
        return
    history = History(_text(1, _SHORT))
    for arm in arms:
        _begin(arm, history)

    def heard(chunk: PrefillChunk) -> None:
        for arm in arms:
            arm.drafter.prefilled(chunk.tokens, chunk.hidden)

    target.request(frozenset().union(*(arm.drafter.needs.hidden for arm in arms)))
    target.prefill(history.tokens[:-1], heard)
    for at, deepest in enumerate((1, *_DEPTHS)):
        evaluation = target.evaluate(history.tokens[-1], EMPTY_TREE)
        target.keep(())
        history.tokens.append(_text(3, 1 + at)[at])
        step = Step(NO_DRAFT, (), (history.tokens[-1],), evaluation)
        for arm in arms:
            if perf_counter() > until:
                return
            arm.hear(history, step)
            if at:
                arm.draft(history, Sampler(), 0, deepest)
            else:
                arm.drafter.draft(history, arm.limits, Sampler())  # takes longer


def _begin(arm: Arm, history: History) -> None:
    arm.limits.price, arm.limits.deepest = 0.0, 2
    arm.begin()
    arm.wake(history)


def _text(first: Token, length: int) -> list[Token]:
    return [first + at % 7 for at in range(length)]
