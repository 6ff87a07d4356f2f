"""What probabilities mean, how much of a draft pays, and whose turn it is to be tried."""

import random

import pytest

from slipstream.drafters.autopilot.active_set import Exploration, Trial, trials
from slipstream.drafters.autopilot.arm import Arm, Calibration
from slipstream.drafters.autopilot.tree_pruning import Objective, prune
from slipstream.drafters.base import Plain
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.types import History

NOTHING = History([1])


def test_a_depth_is_corrected_by_what_came_of_it_and_what_was_not_reached_is_left() -> None:
    calibration, rng = Calibration(), random.Random(1)
    draft = chain_draft([5, 6, 7], [0.8, 0.8, 0.8], "x")
    for _ in range(500):
        first, second = rng.random() < 0.4, rng.random() < 0.8
        depth = calibration.observe(draft, [5 if first else 9, 6 if second else 9, 9][: 2 if first else 1])
        assert depth == (0 if not first else 1 + second)
    probs = calibration.probs(draft)
    assert probs[0] == pytest.approx(0.4, abs=0.12) and probs[1] == pytest.approx(0.8, abs=0.12)
    assert probs[2] == pytest.approx(0.8)  # never decided
    assert calibration.paths[2] == pytest.approx(probs[0] * probs[1] / 0.64)
    # A guess that was not verified is compared with tokens that another drafter's path brought.
    calibration, draft = Calibration(), chain_draft([5, 6, 7], [0.8, 0.8, 0.8], "x")
    for _ in range(100):
        assert calibration.observe(draft, [9, 6, 7]) == 0
    assert calibration.probs(draft)[0] < 0.05 and calibration.probs(draft)[1:] == pytest.approx([0.8, 0.8])


def terms(*rows: float, rate: float = 0.1) -> Objective:
    return Objective(rate, 1.0, (0.0, *rows))


def test_the_part_that_pays_is_kept() -> None:
    draft = chain_draft([1, 2, 3], [0.9, 0.9, 0.1], "x")
    part = prune(draft, draft.probs, terms(10, 14, 18, 22))
    assert part.draft.tree.tokens == (1, 2) and part.draft.probs == (0.9, 0.9) and part.draft.sources == ("x", "x")
    assert part.tokens == pytest.approx(2.71) and part.value == pytest.approx(2.71 - 1.8)
    draft = chain_draft([1, 2, 3], [0.6, 1.0, 1.0], "x")
    assert len(prune(draft, draft.probs, terms(10, 17, 18, 19)).draft.tree) == 3
    assert not len(prune(draft, draft.probs, terms(10, 17, 22, 30)).draft.tree)
    draft = chain_draft([1], [0.6], "x")
    assert len(prune(draft, draft.probs, terms(10, 15)).draft.tree) == 1
    assert not len(prune(draft, draft.probs, terms(10, 15), trust=0.7).draft.tree)
    assert not len(prune(draft, draft.probs, terms(10, 15), slower=1.5).draft.tree)


def test_of_a_tree_the_most_probable_paths_are_kept_in_order_and_one_with_probes_whole() -> None:
    builder = TreeBuilder()
    left, right = builder.add(-1, 1, 0.3, "a"), builder.add(-1, 2, 0.6, "b")
    builder.add(left, 3, 0.9, "a")
    builder.add(right, 4, 0.8, "b")
    builder.add(right, 5, 0.1, "b")
    draft = builder.build()
    part = prune(draft, draft.probs, terms(10, 12.8, 15.6, 18.4, 21.2, 24.0))
    assert part.draft.tree.tokens == (2, 4, 1) and part.draft.sources == ("b", "b", "a")
    assert part.tokens == pytest.approx(1 + 0.6 + 0.48 + 0.3)
    builder = TreeBuilder()
    builder.add(-1, 1, 0.01, "x")
    builder.add(-1, 2, 0.0, "x", probe=True)
    draft = builder.build()
    part = prune(draft, draft.probs, terms(10, 20, 30))
    assert part.draft is draft and part.tokens == pytest.approx(1.01) and part.fitted(4).draft is draft
    for rows in (1, 2):  # a probe beside a row too few would be a token that may be accepted
        assert not len(part.fitted(rows).draft.tree) and part.fitted(rows).tokens == 1


def test_trials_are_paid_and_the_one_that_waited_longest_for_its_price_comes_first() -> None:
    arm = Arm("x", Plain())
    budget = Exploration(10.0, 2.0, known=True)
    near, far = Trial(arm, 1.0, 10), Trial(None, 20.0, 100)
    budget.begin([near, far])
    assert budget.trial is None and not budget.affordable
    budget.earn(1.5, 10.0)
    budget.begin([near, far])
    assert budget.trial is near and budget.arm is arm and budget.milliseconds == pytest.approx(0.5)
    for _ in range(100):
        budget.earn(10.0, 10.0)
    assert budget.milliseconds == 120.0  # no more than twelve plain steps
    budget.begin([near, Trial(None, 20.0, 1000)])
    assert budget.trial and budget.trial.waited == 1000 and budget.arm is None and budget.milliseconds == 100.0


def test_who_takes_longer_than_a_good_step_saves_is_not_tried() -> None:
    quick, slow = Arm("quick", Plain()), Arm("slow", Plain())
    quick.record.draft_ms, slow.record.draft_ms = 2.0, 15.0
    found = trials([quick, slow], None, terms(10, 12, 14, 16), NOTHING, step=100, written=100, since_plain=0, own_ms=0)
    assert [trial.arm for trial in found] == [quick]  # two tokens more for 6 ms of rows and 15 of drafting


class Reader(Plain):
    """Has a long prompt to read before it can draft."""

    def reading_ms(self, history: History) -> float:
        return 300.0


def test_who_reads_the_text_first_is_tried_later_and_its_reading_is_owed() -> None:
    quick, reader = Arm("quick", Plain()), Arm("reader", Reader())
    both = [quick, reader]
    first, later = trials(both, None, terms(10, 12, 14, 16), NOTHING, step=100, written=100, since_plain=0, own_ms=0)
    assert later.milliseconds == first.milliseconds + 300
    budget = Exploration(10.0, 1.0, known=False)
    budget.begin([later])
    assert budget.trial is None  # it holds ten plain steps
    budget.earn(20.0, 10.0)
    early = trials([reader], None, terms(10, 12, 14, 16), NOTHING, step=100, written=10, since_plain=0, own_ms=0)
    budget.begin(early)
    assert budget.trial is None  # in ten tokens it cannot win that much
    budget.begin([later])
    assert budget.arm is reader  # it holds twelve, and cannot hold more
    assert budget.milliseconds == 120 - later.milliseconds


@pytest.mark.parametrize(("plain_ms", "drafts"), [(10.0, 2), (20.0, 4)])
def test_trials_are_short_where_steps_are(plain_ms: float, drafts: int) -> None:
    arm, budget = Arm("x", Plain()), Exploration(plain_ms, 1.0, known=False)
    arm.record.asked, arm.record.draft_ms = 8, 0.5 * plain_ms
    budget.begin([Trial(arm, plain_ms, 10)])
    for made in range(1, 5):
        arm.record.asked += 1
        ends = budget.lose(0.1, plain_ms)
        assert ends == (drafts == 2 and made >= 2)


def test_an_arm_believes_what_came_true() -> None:
    arm = Arm("x", Plain())
    at_first = arm.trust
    for _ in range(100):
        arm.add_outcome(2.0 * arm.trust, 1)
    assert arm.trust == pytest.approx(at_first / 2, rel=0.1)
    for _ in range(300):
        arm.add_outcome(2.0 * arm.trust, 5)
    assert arm.trust == at_first  # never more than it says
