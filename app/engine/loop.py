"""The loop: draft, evaluate, accept, keep, observe. It names no drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from slipstream.app.engine.rules import Rules
from slipstream.drafters.accept import AcceptRule, accept
from slipstream.drafters.base import Drafter, Step, Worth
from slipstream.models.runtime.target import Target
from slipstream.models.sampling import Sampler
from slipstream.models.types import History


def generate(
    target: Target,
    drafter: Drafter,
    sampler: Sampler,
    history: History,
    worth: Worth,
    rules: Rules,
    cancelled: Callable[[], bool],
    rule: AcceptRule = accept,
) -> Iterator[Step]:
    """Writes a reply, step by step.

    The target's cache must hold ``history`` without its last token. The text is a function of the target, the sampler
    and the history alone: a drafter changes only how many tokens a step emits.

    Args:
        target: The model that decides.
        drafter: Who guesses.
        sampler: How the target's tokens are drawn.
        history: The prompt; grows by every step's tokens.
        worth: Whether one more drafted node pays.
        rules: When the reply is over.
        cancelled: Asked before every step.
        rule: What is accepted; any but the exact one changes the text.

    Yields:
        Each step, after the cache and the drafter have heard of it; whoever stops listening leaves both in order.
    """
    while not rules.reason and not cancelled():
        began = perf_counter()
        draft = drafter.draft(history, worth, sampler)
        target.request(drafter.needs.hidden)
        drafted = perf_counter()
        evaluation = target.evaluate(history.tokens[-1], draft.tree)
        evaluated = perf_counter()
        step = rule(draft, evaluation, sampler, history, rules.over)
        accepted = perf_counter()
        target.keep(step.path)
        history.tokens.extend(step.tokens)
        rules.commit(step.tokens)
        drafter.observe(history, step)
        times = step.timings
        times.draft, times.evaluate = 1e3 * (drafted - began), 1e3 * (evaluated - drafted)
        times.accept, times.commit = 1e3 * (accepted - evaluated), 1e3 * (perf_counter() - accepted)
        yield step
