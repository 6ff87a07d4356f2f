import numpy as np
import pytest
from tests.drafters.autopilot.virtual_time import Clock
from tests.models.fake_target import FakeTarget

from slipstream.app.engine.calibrate import Threads
from slipstream.drafters.base import NO_DRAFT, Step, Timings
from slipstream.models.types import EMPTY_TREE, Evaluation, Token, TokenTree

NOTHING = Evaluation(np.zeros((1, 1), np.float32))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time goes on only where a pass is made, so that a test does not depend on the machine that it runs on."""
    made = Clock()
    monkeypatch.setattr("slipstream.app.engine.calibrate.perf_counter", made)
    monkeypatch.setattr(Machine, "clock", made)
    return made


class Machine(FakeTarget):
    clock = Clock()

    def __init__(self, milliseconds: dict[int, float]) -> None:
        super().__init__()
        self.milliseconds, self.count = milliseconds, 0
        self.passes: list[tuple[int, int]] = []

    def use_threads(self, count: int) -> None:
        self.count = count

    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        self.passes.append((self.count, 1 + len(tree)))
        self.clock.now += self.milliseconds.get(self.count, 0.0) / 1e3
        return super().evaluate(last, tree)


def step(milliseconds: float) -> Step:
    return Step(NO_DRAFT, (), (1,), NOTHING, timings=Timings(evaluate=milliseconds))


def test_all_cores_unless_fewer_are_clearly_faster() -> None:
    follower = Machine({})
    idle = Threads(Machine({4: 4.0, 2: 5.0, 1: 9.0}), [follower], 4)
    assert idle.count == follower.count == 4
    assert Threads(Machine({4: 12.0, 2: 11.0, 1: 10.0}), [], 4).count == 4
    busy = Threads(Machine({4: 20.0, 2: 10.0, 1: 3.0}), [follower], 4)
    assert busy.count == follower.count == 1


def test_one_pass_is_enough_of_threads_that_wait_for_busy_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.engine.calibrate._SECONDS", 0.0)
    target = Machine({2: 4.0, 1: 1.0})
    assert Threads(target, [], 2).count == 1 and target.passes == [(2, 1), (1, 1)]


def test_measuring_leaves_the_cache_as_it_was_and_a_full_context_alone() -> None:
    target = Machine({})
    target.prefill([1, 2, 3])
    Threads(target, [], 4)
    assert list(target.tokens) == [1, 2, 3]
    target = Machine({2: 2.0, 1: 0.5})
    target.prefill([1] * (target.abilities.n_ctx - 2))
    assert Threads(target, [], 2).count == 2 and target.decodes == -(-len(target.tokens) // 32)


def test_a_machine_that_becomes_busy_is_noticed_after_a_few_steps_and_free_cores_before_a_reply() -> None:
    target = Machine({2: 2.0, 1: 4.0})
    threads = Threads(target, [], 2, pause=0.0)
    assert threads.count == 2
    target.milliseconds = {2: 40.0, 1: 4.0}
    for _ in range(3):
        threads.add(step(40.0))
    threads.add(step(2.0))  # one quick step, and it was only a hiccup
    for _ in range(3):
        threads.add(step(40.0))
    assert threads.count == 2
    threads.add(step(40.0))
    assert threads.count == target.count == 1
    target.milliseconds = {2: 2.0, 1: 4.0}
    threads.begin()
    assert threads.count == target.count == 2
