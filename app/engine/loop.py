"""The loop: draft, evaluate, accept, keep, observe. It names no drafter."""

from collections.abc import Callable, Iterator
from time import perf_counter, process_time

from slipstream.app.engine.guide import Guide
from slipstream.app.engine.stopping import StopRules
from slipstream.drafters.accept import AcceptRule, accept
from slipstream.drafters.base import NO_DRAFT, Drafter, ShouldExtend, Step
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.target import Target
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History


def generate(
    target: Target,
    drafter: Drafter,
    sampler: Sampler,
    history: History,
    should_extend: ShouldExtend,
    rules: StopRules,
    cancelled: Callable[[], bool],
    *,
    rule: AcceptRule = accept,
    guide: Guide | None = None,
) -> Iterator[Step]:
    """Writes a reply, step by step.

    The target's cache must hold ``history`` without its last token. The text depends on the target, the sampler and
    the history alone: a drafter changes only how many tokens a step emits.

    Args:
        history: The prompt; every step appends its tokens.
        cancelled: Called before every step; True ends the reply.
        rule: Accepts nodes of a draft; only the exact rule leaves the text unchanged.

    Yields:
        Each step, once the cache and the drafter have it; a caller that stops iterating leaves both consistent.
    """
    picker = guide or sampler
    while not rules.reason and not cancelled():
        began = perf_counter()
        draft = drafter.draft(history, should_extend, sampler)
        draft = guide.pruned(draft, history) if guide else draft
        target.request(drafter.needs.hidden, drafter.needs.rows)
        drafted, computed = perf_counter(), process_time()
        try:
            evaluation = target.evaluate(history.tokens[-1], draft.tree)
            evaluated, computed = perf_counter(), process_time() - computed
            step = rule(draft, evaluation, picker, history, rules.over)
        except (SlipstreamError, ValueError) as error:
            if not draft.tree.tokens:
                raise
            target.reset()  # the draft's rows may have left NaN in the cache
            target.prefill(history.tokens[:-1])
            evaluation = target.evaluate(history.tokens[-1])
            evaluated, computed = perf_counter(), 0.0
            step = rule(NO_DRAFT, evaluation, picker, history, rules.over)
            drafter.reject(draft, error)  # the pass succeeded without the draft, so the draft is at fault
        accepted = perf_counter()
        target.keep(step.path)
        history.tokens.extend(step.tokens)
        rules.commit(step.tokens)
        drafter.observe(history, step)
        times = step.timings
        times.draft, times.evaluate = 1e3 * (drafted - began), 1e3 * (evaluated - drafted)
        times.accept, times.commit = 1e3 * (accepted - evaluated), 1e3 * (perf_counter() - accepted)
        times.processor = 1e3 * computed
        yield step
