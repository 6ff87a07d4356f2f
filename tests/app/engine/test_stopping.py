from itertools import pairwise

import numpy as np
import pytest
from tests.drafters.replies import steps_of
from tests.models.fake_target import FakeTarget

from slipstream.app.chats.reasoning import Thinking
from slipstream.app.engine.stopping import FixedBudget, StopRules
from slipstream.app.engine.text import TextStream
from slipstream.drafters.base import Draft, Drafter, ShouldExtend, Step, Timings
from slipstream.drafters.tree import chain_draft
from slipstream.models.errors import UsageError
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Evaluation, History


def rules(room: int = 100, limit: int = 0, stops: tuple[str, ...] = ()) -> StopRules:
    return StopRules(frozenset({0}), room, limit, stops, lambda token: chr(96 + token).encode())


def test_an_end_token_ends_wherever_it_stands_and_nonsense_is_refused() -> None:
    some = rules()
    assert not some.over([1, 2]) and some.over([1, 2, 0])
    some.commit([1, 0])
    assert some.reason == "stop"
    with pytest.raises(UsageError, match="-1"):
        rules(limit=-1)
    with pytest.raises(UsageError, match="empty"):
        rules(stops=("a", ""))


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize(("bound", "reason"), [("limit", "length"), ("room", "context")])
def test_a_limit_or_a_full_context_ends_at_every_offset_of_a_step(bound: str, reason: str, offset: int) -> None:
    some = rules(limit=7) if bound == "limit" else rules(room=7)
    some.commit([1] * (6 - offset))
    assert [some.over([1] * size) for size in range(1, offset + 2)] == [False] * offset + [True]
    assert some.left() == offset + 1
    some.commit([1] * (offset + 1))
    assert some.reason == reason


def test_a_stop_string_may_span_steps_and_rejected_tokens_do_not_count() -> None:
    some = rules(stops=("abc",))
    some.commit([1])
    assert some.over([2, 3]) and not some.over([2, 4])
    some.commit([2, 4])
    assert not some.over([3])
    some.commit([1, 2])
    assert some.over([3])
    some.commit([3])
    assert some.reason == "stop"


@pytest.mark.parametrize(
    ("opened", "text", "ends_at"),
    [
        ("</think>", "so stop it.</think>Go. stop now", "Go. stop"),
        ("</think>", "so stop it, stop", ""),
        ("</think>", "st</think>op. stop", "op. stop"),
        ("</think>", "é</think>stop", "stop"),
        ("", "<think>stop</think>é stop", "é stop"),
        ("", "[THINK]stop[/THINK] a <think> stop", "a <think> stop"),
        ("", "a stop <think>", "a stop"),
        ("", "<thing> stop", "<thing> stop"),
        ("", "<|channel|>analysis<|message|>stop<|start|>assistant<|channel|>final<|message|>Well, stop", "Well, stop"),
        ("</think>", "stop<END>", "stop<END>"),
        ("", "a <END> stop", "a <END>"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_stop_string_ends_the_answer_and_never_the_thoughts(opened: str, text: str, ends_at: str, size: int) -> None:
    raw = text.encode()
    thinking = Thinking(opened)
    some = StopRules(frozenset(), 999, 0, ("stop",), lambda at: raw[at : at + 1], marks=("<END>",), thinking=thinking)
    stream = TextStream(("stop",), marks=("<END>",), thinking=Thinking(opened))
    shown, read = "", 0
    while read < len(raw) and not some.reason:
        step = list(range(read, min(read + size, len(raw))))
        while len(step) > 1 and some.over(step[:-1]):
            step.pop()
        some.commit(step)
        shown += "".join(piece.text for at in step for piece in stream.feed(raw[at : at + 1], "plain"))
        read = step[-1] + 1
    shown += "".join(piece.text for piece in stream.finish())
    assert raw[:read].decode().endswith(ends_at) and bool(some.reason) == bool(ends_at)
    kept = raw[:read].decode()
    assert shown == (kept.removesuffix("stop").removesuffix("<END>") if ends_at else text)


def test_the_budget_never_drafts_past_the_end_and_probes_plain_decoding() -> None:
    some = rules(limit=10)
    budget = FixedBudget(some, rows=4, least=0.3)
    assert budget(1.0, 4) and not budget(1.0, 5) and not budget(0.29, 1)
    some.commit([1] * 7)
    assert budget(1.0, 2) and not budget(1.0, 3)  # three tokens may follow: two drafted ones and the target's own
    budget.step = 8
    assert not budget(1.0, 1)


@pytest.mark.parametrize(("row_ms", "least"), [(0.4, 0.1), (2.0, 0.25), (9.0, 0.5)])
def test_a_fixed_drafter_drafts_more_where_a_row_takes_less_time(row_ms: float, least: float) -> None:
    budget = FixedBudget(rules(limit=1000), plain_ms=lambda: 10.0)
    for _ in range(60):  # two tokens in 10 ms and three rows: a row is worth two tokens in 10 ms
        step = Step(chain_draft((1, 2, 3), (0.5,) * 3, "x"), (0,), (1, 2), Evaluation(np.zeros((4, 1), np.float32)))
        step.timings = Timings(draft=0.0, evaluate=10 + 3 * row_ms)
        budget.add(step)
    bar = next(percent / 100 for percent in range(1, 101) if budget(percent / 100, 1))
    assert bar == pytest.approx(least, abs=0.02)


def test_the_budget_probes_plain_decoding_until_it_is_known_but_not_for_ever() -> None:
    known = [False]
    budget = FixedBudget(rules(limit=100), plain_ms=lambda: 1.0 if known[0] else None)
    probed = []
    for budget.step in range(32):
        known[0] = budget.step > 20
        probed.append(not budget(1.0, 1))
    assert [at for at, probe in enumerate(probed) if probe] == [4, 8, 12, 20]
    budget = FixedBudget(rules(limit=1000), plain_ms=lambda: None)
    probed = []
    for budget.step in range(640):
        probed.append(not budget(1.0, 1))
    assert sum(probed[64:]) == 9 and sum(probed) < 20


class OneToken(Drafter):
    """Drafts one token: always token 0, or the target's own from a length of the text on."""

    name = "one"

    def __init__(self, target: FakeTarget, right_from: int) -> None:
        self._target, self._right_from = FakeTarget(target.abilities.n_vocab), right_from

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        if not should_extend(1.0, 1):
            return chain_draft((), (), self.name)
        token = 0
        if len(history.tokens) >= self._right_from:
            self._target.rewind(0)
            self._target.prefill(history.tokens[:-1])
            token = sampler.rank(self._target.evaluate(history.tokens[-1]).logits[0], history)[0][0]
        return chain_draft([token], [0.9], self.name)


def test_a_drafter_that_is_never_right_falls_silent_until_a_trial_is_right() -> None:
    target = FakeTarget()
    drafted = [bool(step.draft.tree) for step, _ in steps_of(OneToken(target, 9999), target, Sampler(), size=2000)]
    assert sum(drafted[:32]) > 20 and sum(drafted[32:]) < 24
    later = [at for at, each in enumerate(drafted) if each and at > 40]
    gaps = [after - before for before, after in pairwise(later) if after - before > 40]
    assert gaps == sorted(gaps) and gaps[-1] > 2 * gaps[0]
    target = FakeTarget()
    steps = [step for step, _ in steps_of(OneToken(target, 200), target, Sampler(), size=1000)]
    assert sum(bool(step.path) for step in steps) > 200
