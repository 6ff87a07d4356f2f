"""Drafter ``auto``: chooses at each step who drafts how much, or nobody, by what time and tokens are worth here.

It knows no other method by name: it asks drafters through their one interface. As in HedgeSpec (arXiv 2510.20064),
drafters that cost next to nothing are scored on every step, whoever drafted it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import ClassVar, Final

from slipstream.app.engine.arm import LIGHT, Arm
from slipstream.app.engine.budget import deepest
from slipstream.app.engine.choice import PLAIN, Choice, Tally
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.meter import Meter
from slipstream.app.engine.probing import ENOUGH, LASTS, Purse, trials
from slipstream.app.engine.pruning import Part, Terms, best_part
from slipstream.app.engine.repeats import Repeats
from slipstream.app.engine.requests import AUTO
from slipstream.app.engine.together import best_together
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.models.sampling import Sampler
from slipstream.models.types import Abilities, Floats, History, Token

_WIDE: Final = 33  # rows among which the least price of a row is looked for
_STREAK: Final = 3  # tokens in a row that end a run which has occurred before
_PATIENCE: Final = 0.5  # plain steps that a light one may cost before it shows a gain
_DOZES: Final = 16  # steps between two that are timed while all rest
_NEW: Final = 0.1  # weight of the latest step in an average


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
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._costs, self._abilities = costs, abilities
        self._leaves = max((arm.drafter.needs.leaves for arm in self.arms), default=1)
        self._awake: list[Arm] = []
        self._lead: Arm | None = None  # of those whose asking costs something
        self._step = self._plain_at = 0
        self._slope = costs.slope(min(_WIDE, abilities.max_rows))
        self._purse = Purse(costs.rows[1], self._slope, known)
        self._last: Step | None = None
        self._who: Arm | None = None  # drafted it
        self._guesses: dict[str, Draft] = {}
        self._repeats = Repeats()
        self._quiet = True  # whether nothing is tried, and those that are awake cost next to nothing
        self._measured = False  # whether the last step was timed: of those in which nobody drafts, one in a few is
        self._skipped = 0  # plain steps since then that were not
        self._plain = Choice()
        self._began = self._drafters_ms = self._own_ms = 0.0
        self._choosing_ms = 0.0  # what the autopilot's own work takes in a step in which somebody is awake
        self.needs = Needs(leaves=self._leaves)  # type: ignore[misc]  # of those that are awake, not of the class

    def begin(self, history: History) -> None:
        """Starts a reply: those that are awake hear the prompt."""
        self._last, self._measured, self._skipped = None, False, 0
        self.tallies.clear()
        self._costs.at(len(history.tokens))
        self._repeats.begin(history.tokens)
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
        self._step, began = self._step + 1, perf_counter()
        if self._measured:
            self._settle(began)
        if self._step % LASTS == 0:
            self._repeats.follow(history.tokens)
        if self._is_plain(history, sampler):
            self._plain_at, self._measured, self.choice = self._step, False, self._plain
            self._skipped += 1
            return NO_DRAFT
        self._began, self._measured, self._drafters_ms, self._who = began, True, 0.0, None
        if self._repeats.streak >= _STREAK:
            self._wake_light(history)
        if self._step % LASTS == 0 and (self._awake or self._purse.milliseconds >= self._purse.least):
            self._look(history)
        self._guesses.clear()
        trial, chosen = self._purse.trial, NO_DRAFT
        if not self._awake or (trial and trial.arm is None):
            self._plain_at, self.choice = self._step, self._plain
        else:
            chosen = self._choose(history, worth, sampler)
        self._own_ms = 1e3 * (perf_counter() - began) - self._drafters_ms
        return chosen

    def observe(self, history: History, step: Step) -> None:
        """Passes the step on to those that are awake, with what they had guessed."""
        self._last = step
        if not self._measured:
            for arm in self._awake:
                arm.drafter.observe(history, step)
        elif self._awake:
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

    def _is_plain(self, history: History, sampler: Sampler) -> bool:
        """Whether a step is plain beyond doubt: nothing is tried or measured, and those that are asked say nothing.

        Most steps of a text that nobody can guess are such: they take microseconds.
        """
        due = self._step % (LASTS if self._awake else _DOZES) == 0
        if due or not self._quiet or self._repeats.streak >= _STREAK:
            return False
        if any(arm.drafter.draft(history, arm.limits, sampler).tree.tokens for arm in self._awake):
            return False
        for arm in self._awake:
            arm.said_nothing()
        return True

    def _choose(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Asks the cheap ones, then the one that leads if it promises more than they do."""
        terms, room = self.meter.terms(), deepest(worth)
        tried = self._purse.tried
        lead, who = tried or self._lead, None
        best = Part(NO_DRAFT, 1.0, terms.value(1.0, 1))
        second = best.value
        parts: list[tuple[Arm, Part]] = []
        for arm in self._awake:
            if arm is not lead and arm is not self._lead:
                part = self._ask(arm, history, sampler, terms, room)
                parts.append((arm, part))
                if part.value > best.value:
                    best, second, who = part, best.value, arm
                else:
                    second = max(second, part.value)
        if lead and lead.ready and (lead is tried or lead.promise(terms) >= best.value):
            part = self._ask(lead, history, sampler, terms, room)
            parts.append((lead, part))
            if lead is tried and part.value < terms.value(1.0, 1) - ENOUGH:
                self._end_trial()  # who drafts for later steps may want more rows than it can ever bring in
            elif part.value >= best.value or lead.record.ahead:
                best, second, who = part, best.value, lead
            else:
                second = max(second, part.value)
        for arm, _ in parts:
            arm.gained((best.value - second) / terms.rate if arm is who else 0.0)
        if len(parts) > 1:
            best = best_together(best, parts, terms, self._abilities, len(history.tokens))
            who = who or max(parts, key=lambda part: part[1].value)[0]  # it may take several to be worth a pass
        size = len(best.draft.tree)
        if not size:
            self._plain_at, self.choice = self._step, self._plain
            return NO_DRAFT
        self._who = who
        self.choice = Choice(
            who.name if who else PLAIN,
            size,
            terms.rows[1 + size] / terms.rows[1],
            best.tokens,
            self.meter.plain_ms,
            self.meter.rate,
            tried is not None and who is tried,
        )
        return best.draft

    def _ask(self, arm: Arm, history: History, sampler: Sampler, terms: Terms, deepest: int) -> Part:
        """Lets a drafter draft, and takes the part that pays."""
        began = perf_counter()
        arm.limits.price = terms.rate * (self._slope * arm.record.slower + arm.level_ms) / terms.token
        draft = arm.draft(history, sampler, self._step, deepest)
        part = Part(NO_DRAFT, 1.0, terms.value(1.0, 1))
        if draft.tree.tokens:
            self._guesses[arm.name] = draft
            part = best_part(draft, arm.calibration.probs(draft), terms, arm.record.slower, arm.trust)
        arm.judge(part.tokens, 1 + len(part.draft.tree))
        self._drafters_ms += 1e3 * (perf_counter() - began)
        return part

    def _settle(self, now: float) -> None:
        """Takes what the last step cost; the plain ones before it that were not timed cost what such a step does."""
        step, self._last, skipped = self._last, None, self._skipped
        if step is None:
            return
        self._skipped = 0
        asks, wall = next((arm for arm in self._awake if arm.hidden), None), 1e3 * (now - self._began)
        took = self.meter.hear(step, wall, self._drafters_ms + self._own_ms, asks)
        if self._awake:
            self._choosing_ms *= (1 - _NEW) ** skipped
            self._choosing_ms += _NEW * (min(self._own_ms, 1.0) - self._choosing_ms)
        plain_ms = self.meter.plain_ms
        self._plain = Choice(plain_ms=plain_ms, rate=self.meter.rate)
        self._purse.earn(took + skipped * plain_ms, plain_ms)
        if self._who:
            self._who.chosen(self.choice.expected - 1, len(step.tokens) - 1)
        if skipped:
            self.tallies[PLAIN].add(skipped, skipped, skipped * plain_ms, skipped * plain_ms, steps=skipped)
        tally = self.tallies[self._who.name if self._who else PLAIN]
        tally.add(self.choice.expected, len(step.tokens), took, plain_ms * len(step.tokens))
        if self._purse.tried and self._purse.lose(took - plain_ms * len(step.tokens), plain_ms):
            self._end_trial()

    def _look(self, history: History) -> None:
        """Decides who rests, who leads, and what is tried; one that reads the text first is given the time for it."""
        if self._purse.tried and self._purse.tried.drafter.reading_ms(history):
            return
        self._costs.at(len(history.tokens))
        self._slope = self._costs.slope(min(_WIDE, self._abilities.max_rows))
        terms = self.meter.terms()
        known = [arm for arm in self.arms if arm.record.judged and not arm.cheap(terms.rows[1])]
        self._lead = max(known, key=lambda arm: arm.promise(terms), default=None)
        if self._lead and self._lead.promise(terms) <= terms.value(1.0, 1) + terms.rate * self._choosing_ms:
            self._lead = None
        awake = [arm for arm in self._awake if arm is not self._lead and self._stays(arm)]
        if self._lead:
            awake.append(self._lead)
        self._purse.end(self.meter.plain_ms)
        resting = [(arm, arm.cheap(terms.rows[1])) for arm in self.arms if arm not in awake]
        since_plain = self._step - self._plain_at if awake else 0
        choosing_ms = 0.0 if awake else self._choosing_ms
        self._purse.choose(trials(resting, self._lead, terms, history, self._step, since_plain, choosing_ms))
        if self._purse.tried:
            awake.append(self._purse.tried)
        for arm in self._awake:
            if arm not in awake:
                arm.rest()
        for arm in awake:
            arm.wake(history)
        self._awake = awake
        self._quiet = not (self._purse.trial or self._lead) and all(arm.cheap(terms.rows[1], LIGHT) for arm in awake)
        hidden = frozenset[int]().union(*(arm.drafter.needs.hidden for arm in awake))
        if hidden != self.needs.hidden:
            self.needs = Needs(hidden, self._leaves)  # type: ignore[misc]

    def _end_trial(self) -> None:
        arm = self._purse.end(self.meter.plain_ms)
        if arm and arm is not self._lead:
            arm.rest()
            self._awake.remove(arm)

    def _wake_light(self, history: History) -> None:
        """Wakes the best of those that cost little: the text repeats itself, and one of them may copy."""
        self._repeats.streak = 0
        light = [arm for arm in self.arms if arm not in self._awake and arm.cheap(self._costs.rows[1], LIGHT)]
        best = max(light, key=lambda arm: (arm.record.gain_ms, -arm.costs_ms), default=None)
        if best:
            self._awake.append(best)
            best.wake(history)

    def _stays(self, arm: Arm) -> bool:
        """Whether it is worth being asked at every step."""
        if arm.hidden or arm.record.ahead:
            return False
        step_ms = arm.costs_ms + (0.0 if self._lead else self._choosing_ms)
        settling = arm.cheap(self._costs.rows[1], LIGHT) and arm.settling(step_ms, _PATIENCE * self.meter.plain_ms)
        return settling or arm.record.gain_ms > step_ms
