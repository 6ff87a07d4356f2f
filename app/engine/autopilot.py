"""Drafter ``auto``: chooses at each step who drafts how much, or nobody, by what time and tokens are worth here.

It knows no other method by name: it asks drafters through their one interface. As in HedgeSpec (arXiv 2510.20064),
drafters that cost next to nothing are scored on every step, whoever drafted it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import ClassVar, Final

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.choice import PLAIN, Choice, Tally
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.meter import Meter
from slipstream.app.engine.probing import Purse, Trial
from slipstream.app.engine.pruning import Part, Terms, best_part
from slipstream.app.engine.requests import AUTO
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.drafters.merge import merged
from slipstream.models.sampling import Sampler
from slipstream.models.types import Abilities, Floats, History, Token

_CHEAP: Final = 0.02  # share of a plain pass up to which a drafter may be asked in vain
_MERGE_MS: Final = 2.0  # a pass must take so long before drafts are merged, which takes 0.1 ms
_WIDE: Final = 33  # rows among which the least price of a row is looked for
_LOOK: Final = 4  # steps between two looks at who rests; a trial takes so long
_LISTEN: Final = 24  # steps that a cheap drafter is asked before it may rest again
_PLAIN_EVERY: Final = 128  # steps without a plain one after which plain decoding is tried again
_ENOUGH: Final = 1.5  # plain steps that a trial may lose beyond what was expected, before it ends
_WAKING: Final = 0.05  # of a plain pass: what waking a drafter is taken to cost


class Autopilot(Drafter):
    """Asks the drafters that promise most, and lets the others rest.

    A drafter that costs next to nothing is asked at every step, and what it says is weighed by its calibrated
    probabilities. Of the others, whose asking costs something, one leads: that with the best record. It is asked where
    nothing cheaper promises more. Of what was drafted the part that pays is verified, and where nothing pays, nothing.
    Those that rest neither draft nor hear. They are tried again now and then, and so is plain decoding, out of a small
    share of the time.

    Attributes:
        choice: What was chosen last.
        arms: The drafters and their records.
        meter: What time and tokens are worth.
        tallies: What came of each drafter's steps in this reply.
    """

    name: ClassVar[str] = AUTO

    def __init__(
        self, drafters: Mapping[str, Drafter], costs: Costs, abilities: Abilities, known: bool = False
    ) -> None:
        """Takes over drafters.

        Args:
            drafters: By name, and nobody else's; closed with this one.
            costs: Of the target.
            abilities: Of the target.
            known: Whether the arms are given records of an earlier run.
        """
        self.arms = [Arm(name, drafter) for name, drafter in drafters.items()]
        self.meter = Meter(costs)
        self.choice = Choice()
        self.tallies: dict[str, Tally] = {}
        self._costs, self._abilities = costs, abilities
        self._leaves = max((arm.drafter.needs.leaves for arm in self.arms), default=1)
        self._awake: list[Arm] = []
        self._lead: Arm | None = None  # of those whose asking costs something
        self._trial: Trial | None = None
        self._step = self._plain_at = 0
        self._slope = costs.slope(min(_WIDE, abilities.max_rows))
        self._purse = Purse(costs.rows[1], self._slope, known)
        self._lost_ms = 0.0  # by the trial
        self._last: Step | None = None
        self._who: Arm | None = None  # drafted it
        self._guesses: dict[str, Draft] = {}
        self._began = self._drafters_ms = 0.0
        self.needs = Needs(leaves=self._leaves)  # type: ignore[misc]  # of those that are awake, not of the class

    # --- the verbs of a drafter -----------------------------------------------------------------------------------

    def begin(self, history: History) -> None:
        """Starts a reply: those that are awake hear the prompt."""
        self._last = None
        self.tallies = {}
        self._costs.at(len(history.tokens))
        for arm in self.arms:
            arm.begin()
        for arm in self._awake:
            arm.wake(history)

    def prefilled(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Passes the prompt's hidden states on to those that are awake and asked for them."""
        for arm in self._awake:
            if arm.hidden:
                arm.drafter.prefilled(tokens, hidden)

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Chooses, and drafts."""
        now = perf_counter()
        self._settle(now)
        self._began, self._drafters_ms, self._who = now, 0.0, None
        self._step += 1
        if self._step % _LOOK == 0 and (self._awake or self._purse.milliseconds >= self._purse.least):
            self._look(history)
        self._guesses.clear()
        if not self._awake or (self._trial and self._trial.arm is None):
            self._plain_at = self._step
            self.choice = Choice(plain_ms=self.meter.plain_ms, rate=self.meter.rate)
            return NO_DRAFT
        return self._choose(history, worth, sampler)

    def observe(self, history: History, step: Step) -> None:
        """Passes the step on to those that are awake, with what they had guessed."""
        self._last = step
        if self._awake:
            began = perf_counter()
            for arm in self._awake:
                arm.hear(history, step, self._guesses.get(arm.name, NO_DRAFT))
            self._drafters_ms += 1e3 * (perf_counter() - began)

    def rewind(self, length: int) -> None:
        """Forgets every token from index ``length`` on."""
        for arm in self.arms:
            arm.drafter.rewind(length)

    def close(self) -> None:
        """Frees the drafters."""
        for arm in self.arms:
            arm.drafter.close()

    # --- the choice -----------------------------------------------------------------------------------------------

    def _choose(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Asks the cheap ones, then the one that leads if it promises more than they do."""
        terms, deepest = self.meter.terms(), _deepest(worth)
        tried = self._trial.arm if self._trial else None
        lead, who = tried or self._lead, None
        best = Part(NO_DRAFT, 1.0, terms.value(1.0, 1))
        second = best.value
        parts: list[tuple[Arm, Part]] = []
        for arm in self._awake:
            if arm is not lead and arm is not self._lead:
                part = self._ask(arm, history, sampler, terms, deepest)
                parts.append((arm, part))
                if part.value > best.value:
                    best, second, who = part, best.value, arm
                else:
                    second = max(second, part.value)
        if lead and lead.ready and (lead is tried or lead.promise(terms) >= best.value):
            part = self._ask(lead, history, sampler, terms, deepest)
            parts.append((lead, part))
            if part.value >= best.value or lead.record.ahead:
                best, second, who = part, best.value, lead
            else:
                second = max(second, part.value)
        for arm, _ in parts:
            arm.gained((best.value - second) / terms.rate if arm is who else 0.0)
        best = self._together(best, parts, terms, len(history.tokens))
        size = len(best.draft.tree)
        if not size:
            who, self._plain_at = None, self._step
        self._who = who
        self.choice = Choice(
            who.name if who else PLAIN,
            size,
            terms.rows[1 + size] / terms.rows[1],
            best.tokens,
            self.meter.plain_ms,
            self.meter.rate,
            who is tried,
        )
        return best.draft

    def _ask(self, arm: Arm, history: History, sampler: Sampler, terms: Terms, deepest: int) -> Part:
        """Lets a drafter draft, and takes the part that pays."""
        began = perf_counter()
        arm.limits.price = terms.rate * (self._slope * arm.record.slower + arm.level_ms) / terms.token
        draft = arm.draft(history, sampler, self._step, deepest)
        self._guesses[arm.name] = draft
        part = best_part(draft, arm.calibration.probs(draft), terms, arm.record.slower, arm.trust)
        arm.judge(part.tokens, 1 + len(part.draft.tree))
        self._drafters_ms += 1e3 * (perf_counter() - began)
        return part

    def _together(self, best: Part, parts: Sequence[tuple[Arm, Part]], terms: Terms, size: int) -> Part:
        """Merges what several drafted, where that is worth more than the best alone."""
        drafted = [(arm, part.draft) for arm, part in parts if part.draft.tree.drafted and not part.draft.tree.probes]
        if len(drafted) < 2 or best.draft.tree.probes or terms.rows[1] < _MERGE_MS:
            return best
        drafts = [replace(draft, probs=tuple(arm.calibration.probs(draft))) for arm, draft in drafted]
        tree = merged(drafts, self._abilities, size)
        slower, trust = max(arm.record.slower for arm, _ in drafted), min(arm.trust for arm, _ in drafted)
        part = best_part(tree, tree.probs, terms, slower, trust)
        return part if part.value > best.value else best

    # --- time, and who rests --------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Takes what the last step cost."""
        if self._last is None:
            return
        step, self._last = self._last, None
        asks = next((arm for arm in self._awake if arm.hidden), None)
        took = self.meter.hear(step, 1e3 * (now - self._began), self._drafters_ms, asks)
        plain_ms = self.meter.plain_ms
        self._purse.earn(took, plain_ms)
        tally = self.tallies.setdefault(self._who.name if self._who else PLAIN, Tally())
        if self._who:
            self._who.chosen(self.choice.expected - 1, len(step.tokens) - 1)
        tally.steps += 1
        tally.expected += self.choice.expected
        tally.tokens += len(step.tokens)
        tally.ms += took
        tally.plain_ms += plain_ms * len(step.tokens)
        if self._trial and self._trial.arm:
            self._lost_ms += took - plain_ms * len(step.tokens)
            if self._lost_ms > self._trial.milliseconds + _ENOUGH * plain_ms:
                self._end_trial()

    def _look(self, history: History) -> None:
        """Decides who rests, who leads, and what is tried."""
        self._costs.at(len(history.tokens))
        self._slope = self._costs.slope(min(_WIDE, self._abilities.max_rows))
        terms = self.meter.terms()
        plain = terms.value(1.0, 1)
        known = [arm for arm in self.arms if arm.record.judged and not self._cheap(arm)]
        self._lead = max(known, key=lambda arm: arm.promise(terms), default=None)
        if self._lead and self._lead.promise(terms) <= plain:
            self._lead = None
        awake = [arm for arm in self._awake if arm is not self._lead and self._stays(arm)]
        if self._lead:
            awake.append(self._lead)
        self._pay()
        self._trial = self._purse.choose(self._trials(terms, awake))
        if self._trial and self._trial.arm:
            awake.append(self._trial.arm)
        for arm in self._awake:
            if arm not in awake:
                arm.rest()
        for arm in awake:
            arm.wake(history)
        self._awake = awake
        hidden = frozenset[int]().union(*(arm.drafter.needs.hidden for arm in awake))
        if hidden != self.needs.hidden:
            self.needs = Needs(hidden, self._leaves)  # type: ignore[misc]

    def _pay(self) -> None:
        """Settles what the trial that is over lost beyond its price."""
        if self._trial:
            self._purse.owe(self._lost_ms - self._trial.milliseconds, self.meter.plain_ms)
        self._lost_ms = 0.0

    def _end_trial(self) -> None:
        self._pay()
        arm, self._trial = self._trial.arm if self._trial else None, None
        if arm and arm is not self._lead:
            arm.rest()
            self._awake.remove(arm)

    def _trials(self, terms: Terms, awake: Sequence[Arm]) -> Iterator[Trial]:
        """What could be tried, with what it is expected to lose."""
        plain = terms.value(1.0, 1)
        best = max(plain, self._lead.promise(terms)) if self._lead else plain
        waking = _WAKING * terms.rows[1]
        for arm in self.arms:
            if arm not in awake:
                loss = _LISTEN * arm.costs_ms
                if not self._cheap(arm):
                    loss = _LOOK * max(0.0, best - arm.promise(terms)) / terms.rate
                yield Trial(arm, loss + waking, self._step - arm.last)
        if awake and self._step - self._plain_at > _PLAIN_EVERY:
            yield Trial(None, _LOOK * (best - plain) / terms.rate + waking, self._step - self._plain_at)

    def _stays(self, arm: Arm) -> bool:
        """Whether it is worth being asked at every step."""
        if arm.hidden or arm.record.ahead:
            return False
        return arm.record.gain_ms > arm.costs_ms or (arm.settling and self._cheap(arm))

    def _cheap(self, arm: Arm) -> bool:
        """Whether it may be asked in vain."""
        record = arm.record
        known = record.asked > 2 and not record.ahead and not arm.hidden
        return known and arm.costs_ms < _CHEAP * self._costs.rows[1]


def _deepest(worth: Worth) -> int:
    """Most nodes deep that a draft may be."""
    return next((depth for depth in range(64, 0, -1) if worth(1.0, depth)), 0)
