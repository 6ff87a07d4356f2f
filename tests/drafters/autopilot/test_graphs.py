"""The autopilot on devices that keep the graph of a pass: a GPU that captures it, and a machine over a network."""

from collections.abc import Callable, Mapping
from functools import cache

import pytest
from tests.drafters.autopilot.virtual_time import PROMPT, Clock, GraphDevice, Scripted, fly, plain_text

from slipstream.app.engine.loop import generate
from slipstream.app.engine.stopping import FixedBudget, StopRules
from slipstream.drafters import guard
from slipstream.drafters.autopilot.cost_model import measure_costs
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.base import Draft, Drafter, ShouldExtend
from slipstream.drafters.guard import Guard
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

SIZE = 1200
DEVICES: Mapping[str, tuple[Mapping[int, float], float, float]] = {
    "13B": ({1: 10.4, 2: 10.6, 4: 11.0, 8: 11.8, 16: 13.0, 32: 16.0, 64: 22.0}, 2.5, 3.5),
    "7B": ({1: 3.4, 2: 3.7, 4: 4.4, 8: 6.5, 16: 9.0, 32: 11.0, 64: 14.0}, 1.5, 2.0),
    "1B": ({1: 1.5, 2: 1.65, 4: 2.0, 8: 2.8, 16: 4.0, 32: 5.0, 64: 7.0}, 0.7, 1.0),
    "network": ({1: 20.0, 2: 20.5, 4: 21.5, 8: 23.0, 16: 26.0, 32: 32.0, 64: 45.0}, 8.0, 0.0),
}
"""Replayed passes by rows, and what a first and a second pass of a width take longer."""


def copied(at: int) -> float:
    return 0.97 if at % 90 < 40 else 0.02


TEXTS: Mapping[str, tuple[Callable[[int], float], Callable[[int], float]]] = {
    "prose": (lambda at: 0.55, lambda at: 0.02),
    "code": (lambda at: 0.8, copied),
    "copy": (lambda at: 0.6, lambda at: 0.97),
    "unknown": (lambda at: 0.03, lambda at: 0.02),
}
"""How often a draft model and a copying drafter are right at each place."""


@cache
def text() -> list[Token]:
    return plain_text(SIZE)


class LevelByLevel(Scripted):
    """Takes as long for each token as for the first one, as a draft model does."""

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        draft = super().draft(history, should_extend, sampler)
        self._clock.now += len(draft.tree) * self._takes / 1e3
        return draft


def drafters(clock: Clock, kind: str, scale: float) -> dict[str, Drafter]:
    right, copies = TEXTS[kind]
    return {
        "draft": LevelByLevel(text(), clock, right, takes=0.06 * scale),
        "lookup": Scripted(text(), clock, copies, says=0.6, takes=0.02),
        "head": LevelByLevel(text(), clock, lambda at: 0.7 * right(at), takes=0.04 * scale, hidden=True),
        "liar": Scripted(text(), clock, lambda at: 0.02, says=0.9, takes=0.2 * scale),
    }


def fixed(patch: pytest.MonkeyPatch, device: str, kind: str, name: str) -> tuple[float, float]:
    """The milliseconds of a reply with a drafter that is chosen by name, and the share of passes that are replayed."""
    table, eager_ms, capture_ms = DEVICES[device]
    clock = Clock()
    clock.install(patch)
    target, history = GraphDevice(clock, table, eager_ms, capture_ms), History(list(PROMPT))
    drafter = Guard().made(name, lambda: drafters(clock, kind, table[1])[name], target.abilities)
    rules = StopRules(frozenset(), 90_000, SIZE, (), lambda token: b"")
    budget = FixedBudget(rules)
    drafter.begin(history)
    target.prefill(PROMPT[:-1])
    for _ in generate(target, drafter, Sampler(seed=5), history, budget, rules, lambda: False):
        budget.step += 1
    assert history.tokens[len(PROMPT) :] == text()
    return 1e3 * clock.now, target.replayed / target.decodes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", TEXTS)
def test_it_is_never_slow_and_is_near_the_best_drafter(monkeypatch: pytest.MonkeyPatch, device: str, kind: str) -> None:
    table, eager_ms, capture_ms = DEVICES[device]
    clock = Clock()
    clock.install(monkeypatch)
    target = GraphDevice(clock, table, eager_ms, capture_ms)
    costs = measure_costs(target, table[1], clock=clock)
    pilot = Autopilot(drafters(clock, kind, table[1]), costs, target.abilities, clock=clock)
    began, decodes, replayed = clock.now, target.decodes, target.replayed
    tokens, _ = fly(pilot, target, SIZE)
    assert tokens == text()
    took = 1e3 * (clock.now - began)
    share = (target.replayed - replayed) / (target.decodes - decodes)
    plain = SIZE * table[1]
    best = min(fixed(monkeypatch, device, kind, name)[0] for name in ("draft", "lookup", "head"))
    assert took <= plain / 0.97 and took <= min(best, plain) / 0.95
    assert share >= 0.8


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", ["draft", "lookup", "head"])
def test_a_drafter_chosen_by_name_keeps_to_few_widths(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: str, name: str
) -> None:
    took, share = fixed(monkeypatch, device, kind, name)
    monkeypatch.setattr(guard, "_LATEST", 1)
    changing, seldom = fixed(monkeypatch, device, kind, name)
    print(device, kind, name, f"{took:.0f} {share:.2f} {changing:.0f} {seldom:.2f}")
    assert share >= 0.8 and took <= 1.02 * changing
