"""Virtual time: a target whose passes take what a table says, and drafters that are right as often as they are told."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from tests.models.fake_target import FakeTarget

from slipstream.app.engine import loop
from slipstream.app.engine.loop import generate
from slipstream.app.engine.stopping import StopRules, WithinReply
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.policy import Autopilot
from slipstream.drafters.autopilot.throughput import Decision
from slipstream.drafters.base import Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.tree import chain_draft
from slipstream.models.llama.target import WIDTHS
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, LAST_HIDDEN, Evaluation, History, Token, TokenTree, padded

DEAR: Mapping[int, float] = {1: 10.0, 2: 17.0, 4: 22.0, 8: 37.0, 16: 52.0, 64: 170.0}
"""As a 1B model in Q4_0 on two cores."""
CHEAP: Mapping[int, float] = {1: 10.0, 2: 10.2, 8: 11.0, 16: 12.0, 64: 19.0}
"""As a large GPU."""
PROMPT = [3, 1, 4, 1, 5]


class Clock:
    """Time that passes only when it is told to, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(loop, "perf_counter", self)


class TimedTarget(FakeTarget):
    def __init__(self, clock: Clock, table: Mapping[int, float], slower: Callable[[], float] = lambda: 1.0) -> None:
        super().__init__(n_ctx=100_000)
        self._clock, self._slower = clock, slower
        self.rows = CostModel(table, {}, 0, 64).rows

    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        self._clock.now += self.rows[1 + len(tree)] * self._slower() / 1e3
        return super().evaluate(last, tree)


class Scripted(Drafter):
    """Knows the text, is right with a probability by the place, and says another one (None: the true one); a draft
    takes milliseconds of the clock. ``hidden``: it needs the last hidden state to have heard the step before."""

    name = "scripted"
    needs: Needs = Needs()
    failed: str = ""

    def __init__(
        self,
        text: Sequence[Token],
        clock: Clock,
        right: Callable[[int], float],
        says: float | None = None,
        takes: float = 0.01,
        hidden: bool = False,
    ) -> None:
        self._text, self._clock, self._right, self._says, self._takes = text, clock, right, says, takes
        self._hidden, self._heard = hidden, -1
        if hidden:
            self.needs = Needs(frozenset({LAST_HIDDEN}))
        self.asked: list[int] = []
        self.heard = 0

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        self._clock.now += self._takes / 1e3
        at = len(history.tokens) - len(PROMPT)
        self.asked.append(at)
        if self._hidden and self._heard != len(history.tokens):
            return chain_draft((), (), self.name)
        rng, share = random.Random(at), self._right(at)
        tokens: list[Token] = []
        probs: list[float] = []
        path = 1.0
        for depth, token in enumerate(self._text[at : at + 16], start=1):
            path *= self._says or share
            if not should_extend(path, depth):
                break
            tokens.append(token if rng.random() < share else (token + 1) % 64)
            probs.append(self._says or share)
        return chain_draft(tokens, probs, self.name)

    def observe(self, history: History, step: Step) -> None:
        assert not self._hidden or LAST_HIDDEN in step.evaluation.hidden
        self.heard += 1
        self._heard = len(history.tokens)


def plain_text(size: int) -> list[Token]:
    clock = Clock()
    return fly(Autopilot({}, CostModel(CHEAP, {}, 0, 64), FakeTarget().abilities), TimedTarget(clock, CHEAP), size)[0]


def fly(pilot: Autopilot, target: TimedTarget, size: int) -> tuple[list[Token], list[tuple[Decision, int]]]:
    """Writes a reply under an autopilot; returns it, and per step what was chosen and how many tokens came of it."""
    history = History(list(PROMPT))
    rules = StopRules(frozenset(), 90_000, size, (), lambda token: b"")
    pilot.begin(history)
    target.prefill(PROMPT[:-1])
    steps = [
        (pilot.decision, len(step.tokens))
        for step in generate(target, pilot, Sampler(seed=5), history, WithinReply(rules), rules, lambda: False)
    ]
    return history.tokens[len(PROMPT) :], steps


class GraphDevice(TimedTarget):
    """A device that pads passes to a few widths and keeps the graph of the latest one. A GPU runs the first pass of a
    width node by node (``eager_ms`` longer), captures its graph in the second equal pass (``capture_ms`` longer), and
    replays it from the third on; another machine is sent the graph with the first pass."""

    def __init__(self, clock: Clock, table: Mapping[int, float], eager_ms: float, capture_ms: float) -> None:
        super().__init__(clock, table)
        self.abilities = replace(self.abilities, widths=WIDTHS)
        self._longer = (eager_ms, capture_ms)
        self._least, self._width, self._equal, self.changes, self.replayed = 1, 1, 0, 0, 0

    def request(self, points: frozenset[int], rows: int = 1) -> None:
        if points != self._points:
            self._equal = 0  # other outputs, another graph
        super().request(points, rows)
        self._least = rows

    def evaluate(self, last: Token, tree: TokenTree = EMPTY_TREE) -> Evaluation:
        width = padded(max(self._least, 1 + len(tree)), WIDTHS)
        more = self.rows[width] - self.rows[1 + len(tree)]
        if width != self._width:
            self._width, self._equal, self.changes = width, 0, self.changes + 1
        if self._equal < len(self._longer):
            more += self._longer[self._equal]
        else:
            self.replayed += 1
        self._equal += 1
        self._clock.now += more / 1e3
        return replace(super().evaluate(last, tree), padding=width - 1 - len(tree))
