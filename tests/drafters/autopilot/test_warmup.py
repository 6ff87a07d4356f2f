"""Before the first reply every drafter has been asked, those on the target's hidden states too, and nothing is left."""

from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np
import pytest
from tests.drafters.autopilot.virtual_time import DEAR, Clock, TimedTarget
from tests.models.fake_target import FakeTarget

from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.cost_model import CostModel, measure_costs
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.autopilot.profile import warm_up
from slipstream.drafters.autopilot.throughput import ThroughputMeter
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step, Timings
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.guard import Guard
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.tree import chain_draft
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, LAST_HIDDEN, Evaluation, Floats, History, Token, TokenTree


class Needy(Drafter):
    """Drafts where it has heard the hidden state of every token but the last."""

    name = "needy"
    needs = Needs(frozenset({LAST_HIDDEN}))

    def __init__(self) -> None:
        self.heard = 0

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        assert len(hidden[LAST_HIDDEN]) == len(tokens)
        self.heard += len(tokens)

    def observe(self, history: History, step: Step) -> None:
        self.heard += len(step.evaluation.hidden[LAST_HIDDEN])

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        assert self.heard == len(history.tokens) - 1
        return chain_draft([1, 2], [0.5, 0.5], self.name) if should_extend(1.0, 2) else NO_DRAFT

    def rewind(self, length: int) -> None:
        self.heard = min(self.heard, length)


def test_each_is_timed_and_forgets_what_it_heard() -> None:
    target, model, needy = FakeTarget(), FakeTarget(blur=0.3), Needy()
    drafters = [PromptLookup(), DraftModel(model, target.abilities), needy]
    arms = [Arm(drafter.name, drafter) for drafter in drafters]
    warm_up(arms, target, plain_ms=1.0)
    assert [arm.record.asked for arm in arms] == [4, 4, 4]
    assert all(arm.record.draft_ms > 0 and not arm.record.judged for arm in arms)
    assert not target.tokens and needy.heard == 0 and not arms[2].ready
    assert drafters[1].reading_ms(History([5] * 400)) > 0  # how fast it reads is known
    assert not target.evaluate(1, chain_draft([2], [0.5], "x").tree).hidden


def test_one_that_fails_as_it_begins_is_left_out() -> None:
    class Broken(Needy):
        def begin(self, history: History) -> None:
            raise RuntimeError

    target, guard = FakeTarget(), Guard()
    arm = Arm("needy", guard.made("needy", Broken, target.abilities))
    warm_up([arm], target, plain_ms=1.0)
    assert guard.failed and not arm.record.asked


def test_what_hidden_states_cost_is_known_before_they_are_tried() -> None:
    """Over a network, each of them is fetched after a round trip."""
    clock = Clock()

    class Far(TimedTarget):
        def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
            evaluation = super().evaluate(last, tree)
            clock.now += 0.02 * len(evaluation.hidden)
            return evaluation

    class Needier(Needy):
        needs = Needs(frozenset({LAST_HIDDEN, 0, 1}))

    class Slow(PromptLookup):
        def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
            clock.now += 10
            return super().draft(history, should_extend, sampler)

    for other, asked in ((PromptLookup(), 4), (Slow(), 0)):  # the second one takes all the time
        arms = [Arm("needy", Needy(), clock), Arm("needier", Needier(), clock), Arm("lookup", other, clock)]
        warm_up(arms, Far(clock, DEAR), DEAR[1], clock)
        assert [arm.record.slower for arm in arms] == pytest.approx([3, 7, 1])
        assert [arm.record.asked for arm in arms[:2]] == [asked, asked]
        objective = ThroughputMeter(CostModel(DEAR, {}, 0, 64)).objective()
        assert arms[0].value(objective) > arms[1].value(objective) + 3  # plain steps


def test_no_drafter_is_asked_when_time_is_up() -> None:
    now = count(0.0)
    arms = [Arm("lookup", PromptLookup()), Arm("needy", Needy())]
    target = FakeTarget()
    warm_up(arms, target, 1.0, lambda: next(now))
    assert [arm.record.asked for arm in arms] == [0, 0]
    assert 3 <= target.decodes <= 4  # what hidden states add to a pass


def test_a_failing_one_leaves_the_target_in_order() -> None:
    class Broken(Needy):
        def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
            raise ValueError

    target = FakeTarget()
    with pytest.raises(ValueError):
        warm_up([Arm("needy", Broken())], target, plain_ms=1.0)
    assert not target.tokens


@pytest.mark.parametrize("n_ctx", [8, 16, 17, 32, 48, 64, 72, 96, 128])
def test_measuring_and_warming_up_stay_within_a_small_context(n_ctx: int) -> None:
    target, model = FakeTarget(n_ctx=n_ctx), FakeTarget(n_ctx=n_ctx, blur=0.3)
    costs = measure_costs(target, 0.5, 0.1)
    assert len(costs.rows) == target.abilities.max_rows + 1 and min(costs.rows[1:]) > 0
    arms = [Arm("lookup", PromptLookup()), Arm("draft", DraftModel(model, target.abilities)), Arm("needy", Needy())]
    warm_up(arms, target, plain_ms=1.0)
    assert not target.tokens and arms[1].record.asked == 4


def test_prompts_are_read_by_untried_drafters_on_hidden_states_and_by_the_best_one() -> None:
    target, needy, other = FakeTarget(), Needy(), Needy()
    costs = CostModel({1: 10.0, 2: 16.0, 4: 20.0}, {}, 0, target.abilities.max_rows)
    pilot = Autopilot({"needy": needy, "other": other}, costs, target.abilities)
    heard = list[tuple[int, int]]()
    for number in range(1, 9):
        pilot.begin(History([1] * number))
        before = needy.heard, other.heard
        pilot.on_prefill([1, 1], {LAST_HIDDEN: np.zeros((2, 4), np.float32)})
        heard.append((needy.heard - before[0], other.heard - before[1]))
        pilot.draft(History([1] * number), lambda *_: True, Sampler())
        assert not pilot.needs.hidden  # a plain pass is short here: following the text would cost too much
        for arm, tokens in zip(pilot.arms, (1.2, 1.8), strict=True):
            arm.record.judged, arm.record.usual_tokens = 9, tokens
    assert heard == [(2, 2), (0, 2), (0, 2), (2, 2), (0, 2), (0, 2), (0, 2), (2, 2)]


def test_an_idle_drafter_on_hidden_states_follows_the_text_where_a_pass_takes_long() -> None:
    target, needy = FakeTarget(), Needy()
    costs = CostModel({1: 40.0, 2: 50.0, 4: 60.0}, {}, 0, target.abilities.max_rows)
    pilot, history = Autopilot({"needy": needy}, costs, target.abilities), History([1, 2, 3])
    pilot.begin(history)
    for number in range(3):
        before = needy.heard
        draft = pilot.draft(history, lambda *_: True, Sampler())
        assert pilot.needs.hidden == needy.needs.hidden
        hidden = {LAST_HIDDEN: np.zeros((1, 4), np.float32)}
        rows = Evaluation(np.zeros((1, 8), np.float32), hidden)
        pilot.observe(history, Step(draft, (), (number,), rows, timings=Timings(evaluate=40.0)))
        assert needy.heard == before + 1
