import numpy as np
import pytest

from slipstream.app.engine.stats import PlainClock, ReplyStats, origins
from slipstream.drafters.base import NO_DRAFT, Draft, Step
from slipstream.models.types import Evaluation, TokenTree

NOTHING = Evaluation(np.zeros((1, 1), np.float32))


def step(draft: Draft, path: tuple[int, ...], ended: bool = False) -> Step:
    return Step(draft, path, (*(draft.tree.tokens[node] for node in path), 9), NOTHING, ended)


def chain(size: int) -> Draft:
    return Draft(TokenTree.chain(range(size)), (0.5,) * size, ("draft",) * size)


def test_figures_of_a_reply() -> None:
    stats = ReplyStats(PlainClock())
    stats.add(step(NO_DRAFT, ()), 4.0)
    stats.add(step(chain(3), (0, 1)), 4.0)
    stats.add(step(chain(3), (0, 1, 2)), 4.0)
    stats.add(step(chain(2), ()), 4.0)
    speed = stats.speed()
    assert (speed.tokens, speed.steps, speed.drafted, speed.accepted) == (9, 4, 8, 5)
    assert speed.acceptance == 5 / 8 and speed.tokens_per_step == 9 / 4
    assert speed.tok_per_s == pytest.approx(9 / 0.016) and speed.speedup == pytest.approx(9 / 4)
    assert stats.by_depth == [[3, 2], [2, 2], [2, 1]]
    assert {name: count.accepted for name, count in stats.by_drafter.items()} == {"none": 0, "draft": 5}


def test_depths_below_the_end_of_a_reply_are_not_failures() -> None:
    stats = ReplyStats(PlainClock())
    stats.add(step(chain(4), (0,), ended=True), 1.0)
    assert stats.by_depth == [[1, 1]] and stats.speed().acceptance == 1.0


def test_speedup_is_unknown_until_plain_decoding_was_measured() -> None:
    stats = ReplyStats(PlainClock())
    stats.add(step(chain(2), (0,)), 1.0)
    assert stats.speed().speedup is None and ReplyStats(PlainClock()).speed().acceptance is None


def test_acceptance_at_a_depth_counts_first_ranked_children_only() -> None:
    tree = TokenTree((1, 2, 3, 4), (-1, 0, 0, -1))
    stats = ReplyStats(PlainClock())
    stats.add(step(Draft(tree, (0.5,) * 4, ("m",) * 4), (0, 2)), 1.0)
    assert stats.by_depth == [[1, 1], [1, 0]]


def test_every_token_has_an_origin() -> None:
    assert origins(step(NO_DRAFT, ())) == [("plain", "")]
    assert origins(step(chain(2), (0,))) == [("accepted", "draft"), ("recovered", "")]
    assert origins(step(chain(2), ())) == [("recovered", "")]
    assert origins(step(chain(1), (0,))) == [("accepted", "draft"), ("bonus", "")]
    probe = Draft(TokenTree((1, 2), (-1, 0), frozenset({1})), (0.5, 0.0), ("space", "space"))
    assert origins(step(probe, (0,)))[-1] == ("bonus", "")


def test_a_step_that_waited_for_a_busy_core_does_not_decide_the_speedup() -> None:
    clock = PlainClock()
    for milliseconds in (1.0, 1.0, 40.0, 1.0, 1.0):
        clock.add(milliseconds)
    assert clock.milliseconds == 1.0
    stats = ReplyStats(clock)
    for milliseconds in (2.0, 2.0, 90.0, 2.0, 2.0):
        stats.add(step(chain(2), (0, 1)), milliseconds)
    speed = stats.speed()
    assert speed.speedup == pytest.approx(3 / 2) and speed.tok_per_s == pytest.approx(15 / 0.098)


def test_a_machine_that_slowed_down_between_replies_is_not_taken_for_slow_drafting() -> None:
    clock = PlainClock()
    for _ in range(100):
        clock.add(1.0)
    stats = ReplyStats(clock)
    for _ in range(7):
        stats.add(step(NO_DRAFT, ()), 2.0)
    assert stats.speed().speedup == pytest.approx(1.08 / 2, rel=0.1)  # seven plain steps are not enough
    stats.add(step(NO_DRAFT, ()), 2.0)
    assert stats.speed().speedup == pytest.approx(1.0)
    stats.add(step(chain(2), (0, 1)), 3.0)
    assert stats.speed().speedup == pytest.approx(11 * 2 / 19, rel=0.02)
    assert ReplyStats(clock).plain.milliseconds == pytest.approx(1.0, rel=0.1)  # a new reply knows the latest ones


def test_depths_are_counted_by_who_drafted_and_add_up() -> None:
    stats = ReplyStats(PlainClock())
    other = Draft(TokenTree.chain((1, 2, 3)), (0.5,) * 3, ("lookup",) * 3)
    for one in (step(chain(2), (0, 1)), step(other, (0,)), step(NO_DRAFT, ()), step(chain(1), ())):
        stats.add(one, 1.0)
    assert stats.drafter_depths == {"draft": [[2, 1], [1, 1]], "lookup": [[1, 1], [1, 0]]}
    assert stats.by_depth == [[3, 2], [2, 1]]
    assert ReplyStats(PlainClock()).by_depth == []
