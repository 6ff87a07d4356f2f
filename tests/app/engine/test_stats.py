import os
import subprocess
import sys
from contextlib import ExitStack
from time import sleep

import numpy as np
import pytest
from tests.drafters.autopilot.virtual_time import Clock

from slipstream.app.engine.stats import OtherPrograms, PlainClock, ReplyStats, SpillWatch, origins
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
    assert speed.tok_per_s == pytest.approx(9 / 0.016)
    assert stats.by_depth == [[3, 2], [2, 2], [2, 1]]
    assert {name: count.accepted for name, count in stats.by_drafter.items()} == {"none": 0, "draft": 5}


def test_tokens_of_an_ended_process_are_counted_but_save_no_time() -> None:
    whole, rest = ReplyStats(PlainClock()), ReplyStats(PlainClock(), begun=400)
    for stats in (whole, rest):
        plain_steps(stats, 10, 4.0)
        for _ in range(10):
            stats.add(step(chain(3), (0, 1, 2)), 4.0)
    speed = rest.speed()
    assert speed.tokens == whole.speed().tokens + 400 and speed.tok_per_s == whole.speed().tok_per_s
    assert speed.saved_seconds == whole.speed().saved_seconds == pytest.approx(50 * 0.004 - 20 * 0.004)
    few = ReplyStats(PlainClock(), begun=400)
    plain_steps(few, 29, 4.0)
    assert few.speed().speedup is None  # of so few tokens, however long the reply is


def test_depths_are_counted_by_who_drafted_down_to_the_end_of_a_reply() -> None:
    stats = ReplyStats(PlainClock())
    stats.add(step(chain(4), (0,), ended=True), 1.0)
    assert stats.by_depth == [[1, 1]] and stats.speed().acceptance == 1.0
    tree = TokenTree((1, 2, 3, 4), (-1, 0, 0, -1))
    stats = ReplyStats(PlainClock())
    stats.add(step(Draft(tree, (0.5,) * 4, ("m",) * 4), (0, 2)), 1.0)
    assert stats.by_depth == [[1, 1], [1, 0]]
    stats = ReplyStats(PlainClock())
    other = Draft(TokenTree.chain((1, 2, 3)), (0.5,) * 3, ("lookup",) * 3)
    for one in (step(chain(2), (0, 1)), step(other, (0,)), step(NO_DRAFT, ()), step(chain(1), ())):
        stats.add(one, 1.0)
    assert stats.drafter_depths == {"draft": [[2, 1], [1, 1]], "lookup": [[1, 1], [1, 0]]}
    assert stats.by_depth == [[3, 2], [2, 1]]
    assert ReplyStats(PlainClock()).by_depth == []


def test_every_token_has_an_origin() -> None:
    assert origins(step(NO_DRAFT, ())) == [("plain", "")]
    assert origins(step(chain(2), (0,))) == [("accepted", "draft"), ("recovered", "")]
    assert origins(step(chain(2), ())) == [("recovered", "")]
    assert origins(step(chain(1), (0,))) == [("accepted", "draft"), ("bonus", "")]
    probe = Draft(TokenTree((1, 2), (-1, 0), frozenset({1})), (0.5, 0.0), ("space", "space"))
    assert origins(step(probe, (0,)))[-1] == ("bonus", "")


def test_a_spill_is_reported_once_and_only_where_a_gpu_is_full() -> None:
    def watched(now_ms: float, full: bool, passes: list[float], length: int = 100) -> list[dict[str, str]]:
        watch = SpillWatch(4.0, now_ms, growth=0.001, full=lambda: full)
        steps = [step(NO_DRAFT, ()) for _ in passes]
        for each, ms in zip(steps, passes, strict=True):
            each.timings.evaluate = ms
        return [found for each in steps if (found := watch.add(each, length))]

    slow, usual = [15.0] * 30, [5.0] * 30
    (remark,) = watched(4.0, True, slow)
    assert "3 times as long" in next(iter(remark)) and "/context" in next(iter(remark.values()))
    assert not watched(4.0, False, slow) and not watched(4.0, True, usual)
    assert not watched(4.0, True, [*slow[:7], *usual] * 3)  # disturbed for a moment
    assert not watched(4.0, True, slow, length=8000)  # so long a text takes as long
    assert watched(15.0, True, slow[:1]) and not watched(15.0, True, usual[:1])  # slow from the load on


def plain_steps(stats: ReplyStats, count: int, milliseconds: float) -> None:
    for _ in range(count):
        stats.add(step(NO_DRAFT, ()), milliseconds)


def test_the_speedup_is_of_wall_time_over_all_steps() -> None:
    stats = ReplyStats(PlainClock())
    for _ in range(10):
        plain_steps(stats, 9, 2.0)
        plain_steps(stats, 1, 6.0)
    assert stats.speed().speedup == pytest.approx(1.0) and stats.speed().plain_tok_per_s == pytest.approx(1e3 / 2.4)
    stats = ReplyStats(PlainClock())
    plain_steps(stats, 8, 2.0)
    for milliseconds in (3.0,) * 9 + (30.0,):  # one of them waited for a core: its user waited, too
        stats.add(step(chain(2), (0, 1)), milliseconds)
    speed = stats.speed()
    assert speed.tok_per_s == pytest.approx(38 / 0.073) and speed.plain_tok_per_s == pytest.approx(500)
    assert speed.speedup == pytest.approx(38 * 2 / 73)


def test_no_ratio_before_thirty_tokens_and_four_plain_steps() -> None:
    stats = ReplyStats(PlainClock())
    for _ in range(12):
        stats.add(step(chain(2), (0, 1)), 3.0)
    plain_steps(stats, 3, 2.0)
    assert stats.speed().tokens == 39 and stats.speed().plain_tok_per_s is None
    plain_steps(stats, 1, 2.0)
    assert stats.speed().speedup == pytest.approx(40 * 2 / 44)
    short = ReplyStats(PlainClock())
    plain_steps(short, 29, 2.0)
    assert short.speed().plain_tok_per_s == pytest.approx(500) and short.speed().speedup is None


def test_one_disturbed_step_or_a_pass_with_probes_gives_no_baseline() -> None:
    stats = ReplyStats(PlainClock())
    plain_steps(stats, 7, 1.0)
    assert stats.speed().plain_tok_per_s == pytest.approx(1000)
    plain_steps(stats, 1, 40.0)
    speed = stats.speed()
    assert speed.plain_tok_per_s is None and speed.unsteady_tok_per_s == pytest.approx(8e3 / 47) and not speed.busy
    probes = Draft(TokenTree((1, 2), (-1, 0), frozenset({0, 1})), (0.0, 0.0), ("space", "space"))
    stats = ReplyStats(PlainClock())
    for _ in range(40):
        stats.add(step(probes, ()), 5.0)
    assert stats.speed().plain_tok_per_s is None


def test_the_machine_is_busy_if_other_programs_use_it() -> None:
    others = OtherPrograms()
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        others.begin()
        assert not others.busy
        sleep(0.7)
        assert others.busy


def test_a_baseline_is_of_this_reply_or_recent_and_of_about_this_length() -> None:
    clock = Clock()
    plain = PlainClock(clock)
    plain_steps(ReplyStats(plain, prompt_tokens=100), 100, 1.0)
    assert ReplyStats(plain, prompt_tokens=200).speed().plain_tok_per_s == pytest.approx(1000)
    assert ReplyStats(plain, prompt_tokens=5000).speed().plain_tok_per_s is None
    stats = ReplyStats(plain, prompt_tokens=200)
    plain_steps(stats, 8, 2.0)
    assert stats.speed().plain_tok_per_s == pytest.approx(500)  # the machine has slowed down
    clock.now = 59.0
    assert ReplyStats(plain, prompt_tokens=200).speed().plain_tok_per_s is not None
    clock.now = 61.0
    assert ReplyStats(plain, prompt_tokens=200).speed().plain_tok_per_s is None
