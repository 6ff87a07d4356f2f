"""The autopilot: chooses what each step drafts, by the value of time and tokens.

It contains no code for particular methods: all drafters have the same interface. As in HedgeSpec (arXiv 2510.20064),
cheap drafters are scored on every step, even if another drafter's draft was evaluated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter

from slipstream.drafters.autopilot import AUTO, settings
from slipstream.drafters.autopilot.active_set import ActiveSet
from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.cost_model import CostModel
from slipstream.drafters.autopilot.throughput import Decision, ThroughputMeter
from slipstream.drafters.autopilot.tree_pruning import Candidate, Objective, prune
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend, Step
from slipstream.drafters.combine import merged
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Abilities, Floats, History, Token


class Autopilot(Drafter):
    """Calls the drafters of highest value, and leaves the others idle.

    Cheap drafters are called at every step, and their drafts are valued by calibrated probabilities. Of the others, the
    one with the best record leads: it is called if no cheap drafter's draft promises more. Only the nodes whose
    expected gain exceeds their cost are verified.
    """

    name = AUTO
    needs: Needs = Needs()

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        costs: CostModel,
        abilities: Abilities,
        known: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Takes over drafters.

        Args:
            drafters: By name; closed with the autopilot.
            known: Whether the caller gives the arms records of an earlier run.
        """
        self.arms = [Arm(name, drafter, clock) for name, drafter in drafters.items()]
        self.throughput = ThroughputMeter(costs)
        self.decision = self._plain = Decision()  # of this step; of a plain step, by the latest review
        self._active = ActiveSet(self.arms, self.throughput, abilities.max_rows, known)
        self._abilities, self._clock = abilities, clock
        self._drafters = list(drafters.values())
        self._readers: list[Arm] = []  # the drafters that take the hidden states of this reply, idle or not
        self._number = self._plain_at = 0  # numbers of this step, and of the latest plain one
        self._step: Step | None = None  # the latest step of this reply, until its time is recorded
        self._drafter: Arm | None = None  # the arm that drafted that step
        self._resume = 0  # number of the next step that is measured or reviewed
        self._surplus_ms = 0.0  # what the second best choice of this step was worth over a plain step
        self._began = self._drafting_ms = self._own_ms = 0.0  # of the step: its start, and its time outside of the pass
        self._limited = False  # whether the latest draft of this step was limited to the rows of its pass
        self._count = 0  # of the active drafters at the latest change of needs
        self._hidden: Arm | None = None  # an active drafter for which passes return hidden states
        self._update_needs()

    def begin(self, history: History) -> None:
        """Starts a reply: the active drafters read the prompt."""
        self._step, self._resume = None, 0
        self.throughput.unmeasured = 0
        self._active.begin(history)
        self._readers = self._active.readers()
        for arm in self._readers:
            arm.activate(history)
        self._update_needs()

    def known(self, history: History) -> int:
        known = (arm.drafter.known(history) for arm in self._readers if arm in self._active.arms)
        return min(known, default=len(history.tokens))

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Passes the prompt's hidden states on to the drafters that read them."""
        for arm in self._readers:
            if arm.drafter.needs.hidden <= hidden.keys():
                arm.drafter.on_prefill(tokens, hidden)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Records the previous step's time, reviews the active drafters, and drafts."""
        self._number += 1
        if self._readers and self.throughput.plain_ms < settings.BRIEF_MS:
            self._readers = []
            self._update_needs()
        if self._number < self._resume:
            return NO_DRAFT
        began = self._clock()
        if self._step:
            self._account(self._step, began)
        if len(self._active.arms) != self._count:
            self._update_needs()
        if self._coast(history):
            return NO_DRAFT
        self._began, self._drafting_ms, self._drafter = began, 0.0, None
        if self._number % settings.REVIEW_STEPS == 0 and self.throughput.costs.confirmed:
            self._plain = Decision(plain_ms=self.throughput.plain_ms)
            if self._active.review(history, self._number, self._number - self._plain_at):
                self._update_needs()
        if self._active.arms and not self._active.tries_plain:
            draft = self._propose_all(history, should_extend, sampler)
        else:
            draft = self._decode_plainly()
        self._own_ms = 1e3 * (self._clock() - began) - self._drafting_ms
        return draft

    def observe(self, history: History, step: Step) -> None:
        """Passes the step on to the active drafters."""
        for arm in self._readers:
            if arm not in self._active.arms:
                arm.follow(history, step)
        if self._number < self._resume:
            return
        self._step = step
        for arm in self._active.arms:
            arm.observe(history, step)
            self._drafting_ms += arm.took_ms

    def rewind(self, length: int) -> None:
        for drafter in self._drafters:
            drafter.rewind(length)

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()

    def _update_needs(self) -> None:
        self._hidden = next((arm for arm in self._active.arms if arm.hidden), None)
        reading = (*self._active.arms, *self._readers)
        hidden = frozenset[int]().union(*(arm.drafter.needs.hidden for arm in reading))
        leaves = max((arm.drafter.needs.leaves for arm in self.arms), default=1)
        width = self.throughput.costs.width
        if width.rows > 1 and (not self._active.arms or self._active.tries_plain):
            width.use(1)
        self.needs, self._count = Needs(hidden, leaves, width.rows), len(self._active.arms)

    def _coast(self, history: History) -> bool:
        """The fast path: while all drafters are idle, most plain steps are neither measured nor reviewed.

        Measuring a step takes 20 us with cold caches and a review 100 us, while a step of a small model takes 1 ms.

        Returns:
            Whether this step and the next few are such steps.
        """
        if not (self._active.idle and self.throughput.costs.confirmed):
            return False
        affordable, short = self._active.exploration.affordable, self.throughput.plain_ms < settings.SHORT_MS
        every = settings.REVIEW_STEPS * (2 if short and not affordable else 1)
        past = self._number % every
        due = affordable or self._number % (settings.IDLE_REVIEWS * every) == 0
        if not past and (due or self._active.repeats(history)):
            return False
        self._decode_plainly()
        self.throughput.unmeasured += every - past
        self._resume = self._number + every - past
        return True

    def _account(self, step: Step, now: float) -> None:
        """Records the time and tokens of the latest step."""
        self._step = None
        wall_ms, drafting_ms = 1e3 * (now - self._began), self._drafting_ms + self._own_ms
        lost_ms = self.throughput.record(
            step, wall_ms, drafting_ms, self._drafter, self.decision.expected, hidden=self._hidden
        )
        if self._drafter:
            self._drafter.add_gain(self._drafting_ms + self._own_ms - lost_ms - self._surplus_ms)
        self._active.account(lost_ms, self._own_ms)

    def _decode_plainly(self) -> Draft:
        if self.needs.rows == 1:
            self._plain_at = self._number
        self.decision = self._plain
        return NO_DRAFT

    def _propose_all(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Calls the cheap drafters, then the one on trial, or else the leader if it promises more than they do."""
        active, objective = self._active, self.throughput.objective()
        nothing, deepest = Candidate(NO_DRAFT, 1.0, objective.plain), self._deepest(should_extend)
        tried, leader = active.exploration.arm, active.leader
        if tried and leader and tried.cheap(objective.rows[1]):
            tried = None  # its drafts are judged beside the leader's
        last = tried or leader
        self._limited, rows = False, self.needs.rows
        seldom = self._number % (2 * settings.REVIEW_STEPS) == 0  # shows whether wider passes would pay
        fits = deepest if rows == 1 or seldom else rows - 1
        proposals: list[tuple[Arm, Candidate]] = []

        def propose(arm: Arm) -> Candidate:
            arm.set_price(objective, active.row_ms)
            self._limited = arm is last and fits < deepest
            draft = arm.draft(history, sampler, self._number, fits if self._limited else deepest)
            self._drafting_ms += arm.took_ms
            return arm.judge(draft, objective, nothing)

        for arm in active.arms:
            if arm is not last and arm is not leader:
                proposals.append((arm, propose(arm)))
        best = max((candidate.value for _, candidate in proposals), default=nothing.value) if last else nothing.value
        if last and last.ready and (last is tried or last.value(objective) >= max(best, nothing.value)):
            candidate = propose(last)
            if last is tried and candidate.value < nothing.value - settings.TRIAL_LOSS:
                active.end_trial()  # probes may cost more rows than they can ever save
            else:
                proposals.append((last, candidate))
        return self._choose(proposals, nothing, objective, len(history.tokens))

    def _deepest(self, should_extend: ShouldExtend) -> int:
        """Maximum depth of a draft before the reply's end."""
        most = self._abilities.max_rows - 1
        return most if should_extend(1.0, most) else sum(should_extend(1.0, depth) for depth in range(1, most))

    def _choose(
        self, proposals: Sequence[tuple[Arm, Candidate]], nothing: Candidate, objective: Objective, size: int
    ) -> Draft:
        """Takes the candidate of highest value, or several merged; drafts nothing if no draft is worth its pass."""
        best, second, drafter = nothing, -inf, None
        for arm, candidate in proposals:
            if candidate.value > best.value or (arm.record.ahead and candidate.draft.tree.tokens):
                best, second, drafter = candidate, max(best.value, second), arm
            elif candidate.value > second:
                second = candidate.value
        self._surplus_ms = (max(second, nothing.value) - nothing.value) / objective.rate
        if len(proposals) > 1:
            best = self._merge(best, proposals, objective, size)
            drafter = drafter or max(proposals, key=lambda proposal: proposal[1].value)[0]  # alone, none pays
        best = self._fit(best, objective)
        nodes = len(best.draft.tree)
        for arm, _ in proposals:
            if not nodes or arm is not drafter:
                arm.add_gain(0.0)
        if not nodes or not drafter:
            return self._decode_plainly()
        cost, trial = (
            objective.rows[max(self.needs.rows, 1 + nodes)] / objective.rows[1],
            drafter is self._active.exploration.arm,
        )
        self._drafter = drafter
        self.decision = Decision(drafter.name, nodes, cost, best.tokens, plain_ms=self.throughput.plain_ms, trial=trial)
        return best.draft

    def _fit(self, best: Candidate, objective: Objective) -> Candidate:
        """Chooses the width of the pass, where passes have one, and the nodes that fit it."""
        width, before = self.throughput.costs.width, self.needs.rows
        if not width.all:
            return best
        worth = best.values([each for each in width.all if each <= before or not self._limited], objective)
        rows = width.choose({each: value / objective.rate for each, value in worth.items()})
        if rows != before:
            self._update_needs()
        return best.fitted(rows)

    def _merge(
        self, best: Candidate, proposals: Sequence[tuple[Arm, Candidate]], objective: Objective, size: int
    ) -> Candidate:
        """Merges several drafts into one tree if the tree is worth more than the best draft alone."""
        drafted = [(arm, candidate.draft) for arm, candidate in proposals if candidate.draft.tree.drafted]
        drafted = [(arm, draft) for arm, draft in drafted if not draft.tree.probes]
        if len(drafted) < 2 or best.draft.tree.probes or objective.rows[1] < settings.SHORT_MS:
            return best
        drafts = [replace(draft, probs=tuple(arm.calibration.probs(draft))) for arm, draft in drafted]
        tree = merged(drafts, self._abilities, size)
        slower, trust = max(arm.record.slower for arm, _ in drafted), min(arm.trust for arm, _ in drafted)
        candidate = prune(tree, tree.probs, objective, slower, trust)
        return candidate if candidate.value > best.value else best
