"""Steps that nobody timed count as much as those that were."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.books import Books
from slipstream.app.engine.choice import PLAIN
from slipstream.app.engine.costs import Costs
from slipstream.drafters.base import NO_DRAFT, Step
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.tree import chain_draft
from slipstream.models.types import Evaluation

ROWS = {1: 10.0, 2: 11.0, 4: 13.0, 64: 73.0}


def plain_step() -> Step:
    step = Step(NO_DRAFT, (), (1,), Evaluation(np.zeros((1, 4), np.float32)))
    step.timings.evaluate, step.timings.accept = 10.0, 0.5
    return step


def drafted_step() -> Step:
    draft = chain_draft([1, 2, 3], [0.9] * 3, "lookup")
    step = Step(draft, (0, 1), (1, 2, 9), Evaluation(np.zeros((4, 4), np.float32)))
    step.timings.evaluate, step.timings.accept = 13.0, 1.5
    return step


def books_and_arm() -> tuple[Books, Arm]:
    books, arm = Books(Costs(ROWS, {}, 0, 64)), Arm("lookup", PromptLookup())
    books.settle(plain_step(), 11.0, 0.0, None, 1.0, None)  # so that drawing and the rest are known
    return books, arm


def test_untimed_steps_take_what_such_steps_take() -> None:
    books, arm = books_and_arm()
    for _ in range(3):
        books.plain()
    books.drafted(arm, 2.8, 3, 4)
    settled = books.settle(plain_step(), 11.0, 0.0, None, 1.0, None)
    drafted = 13.0 + 3 * 0.5 + 0.5
    assert settled.plain == 3 and settled.lost == pytest.approx(0.0)
    assert settled.milliseconds == pytest.approx(4 * 11.0 + drafted)
    tallies = books.tallies
    assert tallies[PLAIN].steps == tallies[PLAIN].tokens == 5 and tallies[PLAIN].ms == pytest.approx(55.0)
    assert (tallies["lookup"].steps, tallies["lookup"].tokens) == (1, 3)
    assert tallies["lookup"].ms == pytest.approx(drafted) and tallies["lookup"].plain_ms == pytest.approx(33.0)
    assert arm.record.came == pytest.approx(0.97 * 4 + 2)  # its drafted tokens are heard of, too


def test_the_rate_is_that_of_all_steps_timed_or_not() -> None:
    timed, _ = books_and_arm()
    untimed, arm = books_and_arm()
    for _ in range(40):
        timed.settle(drafted_step(), 15.0, 0.0, None, 2.8, None)
        for _ in range(3):
            timed.settle(plain_step(), 11.0, 0.0, None, 1.0, None)
        untimed.drafted(arm, 2.8, 3, 4)
        untimed.plain()
        untimed.plain()
        untimed.settle(plain_step(), 11.0, 0.0, None, 1.0, None)
    assert timed.meter.rate == pytest.approx(6 / 48, rel=0.02)
    assert untimed.meter.rate == pytest.approx(timed.meter.rate, rel=0.02)


def test_what_the_tallies_took_is_still_part_of_the_next_account() -> None:
    books, _ = books_and_arm()
    books.plain()
    assert books.tallies[PLAIN].steps == 2
    assert books.settle(plain_step(), 11.0, 0.0, None, 1.0, None).milliseconds == pytest.approx(22.0)
    assert books.tallies[PLAIN].steps == 3


def test_a_new_reply_begins_without_the_last_ones_steps() -> None:
    books, arm = books_and_arm()
    books.plain()
    books.drafted(arm, 2.8, 3, 4)
    books.begin()
    assert not books.tallies
    assert books.settle(plain_step(), 11.0, 0.0, None, 1.0, None).milliseconds == pytest.approx(11.0)
