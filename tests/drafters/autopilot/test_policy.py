"""The autopilot in virtual time: never much slower than plain decoding, near the best choice, and quick to turn."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest
from tests.drafters.autopilot.virtual_time import CHEAP, DEAR, PROMPT, Clock, Scripted, TimedTarget, fly, plain_text

from slipstream.drafters.autopilot import AUTO
from slipstream.drafters.autopilot.active_set import Repetition
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.autopilot.throughput import PLAIN
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History, Token

SIZE = 1500


@cache
def text() -> Sequence[Token]:
    return plain_text(2 * SIZE)


class Flight:
    """One reply: what it took against plain decoding, and which drafter was chosen at each step."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        table: Mapping[int, float],
        drafters: Callable[[Clock], dict[str, Drafter]],
        size: int = SIZE,
        known: bool = False,
        slower: Callable[[int], float] = lambda passes: 1.0,
        believed: Mapping[int, float] | None = None,
    ) -> None:
        clock = Clock()
        clock.install(patch)
        target: TimedTarget = TimedTarget(clock, table, lambda: slower(target.decodes))
        self.drafters = drafters(clock)
        costs = CostModel(believed or table, {}, 0, 64)
        self.pilot = Autopilot(self.drafters, costs, target.abilities, known, clock)
        tokens, self.steps = fly(self.pilot, target, size)
        assert tokens == text()[:size]  # whatever was drafted
        self.ms = 1e3 * clock.now
        self.speedup = size * table[1] / self.ms

    def by(self, name: str) -> list[int]:
        return [count for decision, count in self.steps if decision.drafter == name]


def always(share: float) -> Callable[[int], float]:
    return lambda at: share


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.15, 0.4])
@pytest.mark.parametrize("wrong", [{1: 20.0}, {2: 10.5, 4: 11.0, 8: 13.0}])
def test_costs_that_were_measured_in_a_disturbed_moment_mislead_only_for_a_few_steps(
    monkeypatch: pytest.MonkeyPatch, wrong: Mapping[int, float], share: float
) -> None:
    def drafters(clock: Clock) -> dict[str, Drafter]:
        return {
            "cheap": Scripted(text(), clock, always(share)),
            "dear": Scripted(text(), clock, always(share), takes=1.0),
        }

    flight = Flight(monkeypatch, DEAR, drafters, 96, believed={**DEAR, **wrong})
    assert flight.speedup > 0.9  # 0.65 if the measured costs were believed until the next plain step


@pytest.mark.parametrize("factor", [2.5, 0.4])
@pytest.mark.parametrize(("widths", "least"), [((1, 2, 4, 8), 0.95), ((1,), 0.7), ((2, 4, 8), 0.95)])
def test_costs_that_a_busy_machine_has_taught_are_dropped(
    monkeypatch: pytest.MonkeyPatch, factor: float, widths: Sequence[int], least: float
) -> None:
    """Too high a cost of wider passes is found only once it has been forgotten, after 128 plain steps."""
    size = 300 if factor > 1 and 1 not in widths else 150
    found = []
    for wrong in (1.0, factor):
        clock = Clock()
        clock.install(monkeypatch)
        target, costs = TimedTarget(clock, CHEAP), CostModel(CHEAP, {}, 0, 64)
        for _ in range(200):
            for rows in (1, 2, 4, 8):
                costs.observe(rows, target.rows[rows] * (wrong if rows in widths else 1.0))
        cheap = Scripted(text(), clock, always(0.6))
        pilot = Autopilot({"cheap": cheap}, costs, target.abilities, True, clock)
        tokens, _ = fly(pilot, target, size)
        assert tokens == text()[:size]
        found.append(clock.now if size == 150 else clock.now - 128 * CHEAP[1] / 1e3 * (wrong > 1))
    assert found[0] > least * found[1]


@pytest.mark.slow
def test_where_nothing_is_right_plain_decoding_loses_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, least in ((DEAR, 0.985), (CHEAP, 0.985)):
        flight = Flight(
            monkeypatch,
            table,
            lambda clock: {
                "liar": Scripted(text(), clock, always(0.02), says=0.95),
                "modest": Scripted(text(), clock, always(0.02)),
                "slow liar": Scripted(text(), clock, always(0.02), says=0.95, takes=3.0),
                "needy liar": Scripted(text(), clock, always(0.02), says=0.95, takes=1.0, hidden=True),
            },
        )
        assert flight.speedup > least and len(flight.by(PLAIN)) > 0.9 * len(flight.steps)


def test_a_drafter_that_costs_nothing_and_is_right_is_used_to_the_full(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(monkeypatch, CHEAP, lambda clock: {"right": Scripted(text(), clock, always(0.95))})
    # 16 nodes at 0.95: 11.2 tokens for 1.22 passes
    assert flight.speedup > 0.85 * 11.2 / 1.22


@pytest.mark.parametrize("hidden", [False, True])
def test_a_drafter_that_costs_something_leads_where_it_pays(monkeypatch: pytest.MonkeyPatch, hidden: bool) -> None:
    def drafters(clock: Clock) -> dict[str, Drafter]:
        return {
            "good": Scripted(text(), clock, always(0.8), takes=2.0, hidden=hidden),
            "fair": Scripted(text(), clock, always(0.5), takes=2.0),
        }

    flight = Flight(monkeypatch, CHEAP, drafters)
    assert len(flight.by("good")) > 0.8 * len(flight.steps)
    # 16 nodes at 0.8: 4.9 tokens for 1.22 passes and 0.2 of drafting
    assert flight.speedup > 0.85 * 4.9 / 1.42


def test_dear_rows_make_drafts_short_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def drafters(clock: Clock) -> dict[str, Drafter]:
        return {"fair": Scripted(text(), clock, always(0.8))}

    dear, cheap = (Flight(monkeypatch, table, drafters) for table in (DEAR, CHEAP))
    assert dear.speedup > 1.05  # three nodes at 0.8: 2.95 tokens for 2.2 passes
    assert cheap.speedup > 2 * dear.speedup
    assert max(count for _, count in dear.steps) < max(count for _, count in cheap.steps)
    dear, cheap = (Flight(monkeypatch, table, lambda clock: {"greedy": Greedy()}) for table in (DEAR, CHEAP))
    assert max(decision.nodes for decision, _ in dear.steps) == 0
    assert dear.pilot.arms[0].record.asked > 0
    assert max(decision.nodes for decision, _ in cheap.steps) == 28
    assert dear.speedup > 0.99


class Greedy(Drafter):
    """Asks for many rows for the sake of later steps, and never drafts anything."""

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        builder, node = TreeBuilder(), ROOT
        for token in range(28):
            node = builder.add(node, token, 0.0, "greedy", probe=True)
        return builder.build()


@pytest.mark.parametrize(("takes", "most"), [(0.01, 24), (2.0, 160)])
def test_it_turns_when_another_drafter_becomes_right(monkeypatch: pytest.MonkeyPatch, takes: float, most: int) -> None:
    """One that costs nothing is scored on every step; one that costs something is tried now and then."""

    def drafters(clock: Clock) -> dict[str, Drafter]:
        return {
            "first": Scripted(text(), clock, lambda at: 0.9 if at < SIZE else 0.05, says=0.9, takes=takes),
            "second": Scripted(text(), clock, lambda at: 0.05 if at < SIZE else 0.9, says=0.9, takes=takes),
        }

    flight = Flight(monkeypatch, CHEAP, drafters, size=2 * SIZE)
    at, after = 0, list[str]()
    for decision, count in flight.steps:
        if at >= SIZE:
            after.append(decision.drafter)
        at += count
    right = next(place for place in range(len(after)) if after[place : place + 10].count("second") >= 8)
    assert right < most
    assert after[right:].count("second") > 0.85 * len(after[right:])


@pytest.mark.slow
def test_two_drafters_that_are_right_elsewhere_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is right every other token at most; both together are right always."""

    def drafters(clock: Clock) -> dict[str, Drafter]:
        return {
            "even": Scripted(text(), clock, lambda at: 0.98 if at % 2 else 0.02, says=0.5),
            "odd": Scripted(text(), clock, lambda at: 0.02 if at % 2 else 0.98, says=0.5),
        }

    both = Flight(monkeypatch, CHEAP, drafters, size=2 * SIZE)
    one = Flight(monkeypatch, CHEAP, lambda clock: {"even": drafters(clock)["even"]}, size=2 * SIZE)
    assert both.speedup > 1.2 * one.speedup


def test_a_drafter_that_is_seldom_right_is_called_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def bursts(at: int) -> float:
        return 0.98 if at % 40 < 10 else 0.0

    flight = Flight(monkeypatch, CHEAP, lambda clock: {"seldom": Scripted(text(), clock, bursts)})
    seldom = flight.drafters["seldom"]
    assert isinstance(seldom, Scripted) and len(seldom.asked) > 0.95 * len(flight.steps)
    assert len(set(seldom.asked)) == len(seldom.asked) == flight.pilot.arms[0].record.asked  # once a step
    assert sum(flight.by(PLAIN)) < 1.05 * 30 / 40 * SIZE  # of each burst nothing is missed
    assert 2.0 < flight.pilot.arms[0].record.gain_ms < 8.0  # about 80 ms in 31 steps: those without a draft count, too


def test_those_that_rest_hear_nothing_and_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(
        monkeypatch,
        DEAR,
        lambda clock: {"needy": Scripted(text(), clock, always(0.02), says=0.9, takes=4.0, hidden=True)},
    )
    needy = flight.drafters["needy"]
    assert isinstance(needy, Scripted)
    assert 0 < needy.heard < 0.1 * len(flight.steps)
    assert len(needy.asked) < needy.heard
    assert not flight.pilot.needs.hidden or flight.pilot.decision.trial


def test_a_machine_that_slows_down_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(
        monkeypatch,
        DEAR,
        lambda clock: {"fair": Scripted(text(), clock, always(0.7))},
        slower=lambda passes: 1.0 if passes < 300 else 1.8,
    )
    costs = flight.pilot.throughput.costs
    assert costs.rows[1] == pytest.approx(18.0, rel=0.1) and costs.drift == pytest.approx(1.8, rel=0.15)


def test_plain_decoding_is_measured_again_and_a_decision_says_what_it_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(monkeypatch, CHEAP, lambda clock: {"right": Scripted(text(), clock, always(0.7))})
    plain = [place for place, (decision, _) in enumerate(flight.steps) if decision.drafter == PLAIN]
    assert plain and max(plain) > len(flight.steps) / 2 and len(plain) < 0.1 * len(flight.steps)
    flight = Flight(monkeypatch, DEAR, lambda clock: {"fair": Scripted(text(), clock, always(0.8))})
    drafted = [(decision, count) for decision, count in flight.steps if decision.drafter == "fair"]
    assert all(decision.nodes and decision.cost > 1 for decision, _ in drafted)
    expected = sum(decision.expected for decision, _ in drafted)
    assert expected == pytest.approx(sum(count for _, count in drafted), rel=0.15)
    assert drafted[-1][0].plain_ms == pytest.approx(10.0, rel=0.05)


def test_it_closes_and_rewinds_its_drafters() -> None:
    calls: list[str] = []

    class Noted(Drafter):
        def draft(self, *_: object) -> Draft:
            raise AssertionError

        def rewind(self, length: int) -> None:
            calls.append(f"rewind {length}")

        def close(self) -> None:
            calls.append("close")

    pilot = Autopilot({"a": Noted(), "b": Noted()}, CostModel(DEAR, {}, 0, 64), TimedTarget(Clock(), DEAR).abilities)
    assert pilot.name == AUTO
    pilot.rewind(len(PROMPT))
    pilot.close()
    assert calls == ["rewind 5"] * 2 + ["close"] * 2


class Failing(Scripted):
    """Fails in the middle of the reply, and drafts nothing from then on, as a guarded drafter does."""

    closed = False

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        if len(history.tokens) > SIZE // 2:
            self.failed = "it raised an error"
            return NO_DRAFT
        return super().draft(history, should_extend, sampler)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("takes", [0.01, 2.0])  # cheap; the leader
def test_a_failed_drafter_leaves_and_another_one_takes_over(monkeypatch: pytest.MonkeyPatch, takes: float) -> None:
    flight = Flight(
        monkeypatch,
        CHEAP,
        lambda clock: {
            "failing": Failing(text(), clock, always(0.95), takes=takes),
            "fair": Scripted(text(), clock, always(0.6), takes=takes),
        },
    )
    failing = flight.drafters["failing"]
    assert isinstance(failing, Failing) and failing.failed
    assert [arm.name for arm in flight.pilot.arms] == ["fair"]
    assert failing.asked and len(failing.asked) < len(flight.steps) / 2
    drafted = [decision.drafter for decision, _ in flight.steps]
    assert drafted[: len(drafted) // 8].count("failing") > 10 and drafted[-50:].count("fair") > 40
    flight.pilot.close()
    assert failing.closed


def test_a_drafter_that_failed_between_replies_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(monkeypatch, CHEAP, lambda clock: {"right": Scripted(text(), clock, always(0.9), hidden=True)})
    assert flight.pilot.needs.hidden
    right = flight.drafters["right"]
    assert isinstance(right, Scripted)
    right.failed, right.needs = "its file is damaged", Needs()
    monkeypatch.setattr(right, "begin", lambda history: pytest.fail("it was begun"))
    flight.pilot.begin(History(list(PROMPT)))
    assert not flight.pilot.arms and not flight.pilot.needs.hidden


def test_a_trial_of_a_drafter_that_costs_nothing_does_not_hold_up_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    def drafters(clock: Clock) -> dict[str, Drafter]:
        cheap = {f"cheap {number}": Scripted(text(), clock, always(0.02)) for number in range(6)}
        return {"good": Scripted(text(), clock, always(0.9), takes=2.0), **cheap}

    flight = Flight(monkeypatch, CHEAP, drafters)
    after = [decision.drafter for decision, _ in flight.steps[len(flight.steps) // 4 :]]
    assert after.count("good") > 0.97 * len(after)  # 0.53 where the leader waited for the trials
    assert sum(arm.record.asked > 3 for arm in flight.pilot.arms) > 2  # which were tried


def test_a_run_that_stood_in_the_prompt_makes_a_streak() -> None:
    repeats = Repetition()
    repeats.begin([1, 2, 3, 4, 5, 6, 7, 8])
    streaks, text = [], [1, 2, 3, 4, 5, 6, 7, 8]
    for token in (20, 2, 3, 4, 5, 6, 9):
        text.append(token)
        repeats.follow(text)
        streaks.append(repeats.streak)
    assert streaks == [0, 0, 0, 0, 1, 2, 0]
    repeats.follow([*text, 2, 3, 4, 5])
    assert repeats.streak == 1  # as in the reply, too


def test_the_next_turn_reads_what_is_new_and_another_chat_begins_anew() -> None:
    repeats = Repetition()
    first = list(range(100))
    repeats.begin(first)
    repeats.begin([*first, 200, 201, 202, 203])
    repeats.follow([*first, 200, 201, 202, 203, 200, 201, 202, 203])
    assert repeats.streak == 1
    other = [300, *first[:3]]
    repeats.begin(other)
    repeats.follow([*other, 3])
    assert repeats.streak == 0
    repeats.follow([*other, 3, 300, 0, 1, 2, 3])
    assert repeats.streak == 2
