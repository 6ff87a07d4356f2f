"""Drafter ``auto``: chooses at each step who drafts how much, or nobody, by what time and tokens are worth here.

It knows no other method by name: it asks drafters through their one interface. As in HedgeSpec (arXiv 2510.20064),
drafters that cost next to nothing are scored on every step, whoever drafted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from time import perf_counter
from typing import ClassVar, Final

from slipstream.app.engine.arm import Arm
from slipstream.app.engine.books import Books
from slipstream.app.engine.budget import deepest
from slipstream.app.engine.choice import Choice
from slipstream.app.engine.costs import Costs
from slipstream.app.engine.probing import ENOUGH, LASTS
from slipstream.app.engine.pruning import Part, Terms, best_part
from slipstream.app.engine.repeats import Repeats
from slipstream.app.engine.requests import AUTO
from slipstream.app.engine.roster import Roster
from slipstream.app.engine.together import best_together
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.models.sampling import Sampler
from slipstream.models.types import Abilities, Floats, History, Token

_STREAK: Final = 3  # tokens in a row that end a run which has occurred before
_GLANCES: Final = 8  # steps between two that are timed while those that are awake cost next to nothing
_DOZES: Final = 16  # the same while all rest


class Autopilot(Drafter):
    """Asks the drafters that promise most, and lets the others rest.

    A drafter that costs next to nothing is asked at every step, and what it says is weighed by its calibrated
    probabilities. Of the others, whose asking costs something, one leads: that with the best record. It is asked where
    nothing cheaper promises more. Of what was drafted the part that pays is verified, and where nothing pays, nothing.
    Most steps go by themselves and are not timed.

    Attributes:
        choice: What was chosen last.
        arms: The drafters and their records.
        books: What the steps took and brought.
        meter: What time and tokens are worth, by the books.
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
        self.books, self.choice = Books(costs), Choice()
        self.meter = self.books.meter
        self._costs, self._abilities = costs, abilities
        self._leaves = max((arm.drafter.needs.leaves for arm in self.arms), default=1)
        self._roster = Roster(self.arms, self.meter, costs, abilities.max_rows, known)
        self._step = self._plain_at = 0
        self._last: Step | None = None
        self._who: Arm | None = None  # drafted it
        self._guesses: dict[str, Draft] = {}
        self._repeats = Repeats()
        self._timed = False  # whether the last step was timed: of those that go by themselves, one in a few is
        self._plain = Choice()
        self._began = self._drafters_ms = self._own_ms = 0.0
        self.needs = Needs(leaves=self._leaves)  # type: ignore[misc]  # of those that are awake, not of the class

    def begin(self, history: History) -> None:
        """Starts a reply: those that are awake hear the prompt."""
        self._last, self._who, self._timed = None, None, False
        self.books.begin()
        self._repeats.begin(history.tokens)
        self._roster.begin(history)

    def prefilled(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Passes the prompt's hidden states on to those that are awake and asked for them."""
        for arm in self._roster.awake:
            if arm.hidden:
                arm.drafter.prefilled(tokens, hidden)

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Chooses, and drafts."""
        roster, began = self._roster, perf_counter()
        self._step += 1
        if self._timed:
            self._settle(began)
        self._who = None
        if self._step % LASTS == 0:
            self._repeats.follow(history.tokens)
        said = self._said(history, worth, sampler)
        if said is not None:
            self._timed = False
            if not said:
                return self._decode_plainly()
            terms = self.meter.terms()
            parts = [(arm, self._weigh(arm, draft, terms)) for arm, draft in said]
            return self._choose(parts, terms, len(history.tokens))
        self._began, self._timed, self._drafters_ms = began, True, 0.0
        if self._repeats.streak >= _STREAK:
            self._repeats.streak = 0
            roster.wake_light(history)
        if self._step % LASTS == 0 and roster.look(history, self._step, self._step - self._plain_at):
            self.needs = Needs(roster.hidden, self._leaves)  # type: ignore[misc]
        trial = roster.purse.trial
        if not roster.awake or (trial and trial.arm is None):
            chosen = self._decode_plainly()
        else:
            chosen = self._ask_all(history, worth, sampler)
        self._own_ms = 1e3 * (perf_counter() - began) - self._drafters_ms
        return chosen

    def observe(self, history: History, step: Step) -> None:
        """Passes the step on to those that are awake, with what they had guessed."""
        if not self._timed:
            for arm in self._roster.awake:
                arm.listen(history, step, self._guesses.get(arm.name, NO_DRAFT))
            if self._who:
                self.books.drafted(self._who, self.choice.expected, len(step.tokens), 1 + len(step.draft.tree))
            else:
                self.books.plain()
            return
        self._last = step
        if self._roster.awake:
            began = perf_counter()
            for arm in self._roster.awake:
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

    def _decode_plainly(self) -> Draft:
        self._plain_at, self.choice = self._step, self._plain
        return NO_DRAFT

    def _said(self, history: History, worth: Worth, sampler: Sampler) -> list[tuple[Arm, Draft]] | None:
        """What those that are awake draft in a step that goes by itself; None where it has to be timed.

        Most steps go by themselves: nothing is tried, and those that are awake cost next to nothing. Where they say
        nothing either, such a step takes microseconds.
        """
        self._guesses.clear()
        due = self._step % (_GLANCES if self._roster.awake else _DOZES) == 0
        if due or not self._roster.quiet or self._repeats.streak >= _STREAK:
            return None
        said: list[tuple[Arm, Draft]] = []
        for arm in self._roster.awake:
            draft = arm.glance(history, sampler)
            if draft.tree.tokens:
                if not worth(1.0, draft.tree.depth):
                    return None  # it goes past the end of the reply
                said.append((arm, draft))
        return said

    def _ask_all(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Asks the cheap ones, then the one that leads if it promises more than they do."""
        terms, room = self.meter.terms(), deepest(worth)
        roster, plain = self._roster, terms.value(1.0, 1)
        tried = roster.purse.tried
        lead = tried or roster.lead
        parts = [
            (arm, self._ask(arm, history, sampler, terms, room))
            for arm in roster.awake
            if arm is not lead and arm is not roster.lead
        ]
        best = max((part.value for _, part in parts), default=plain)
        if lead and lead.ready and (lead is tried or lead.promise(terms) >= max(best, plain)):
            part = self._ask(lead, history, sampler, terms, room)
            if lead is tried and part.value < plain - ENOUGH:
                roster.end_trial()  # who drafts for later steps may want more rows than it can ever bring in
            else:
                parts.append((lead, part))
        return self._choose(parts, terms, len(history.tokens))

    def _ask(self, arm: Arm, history: History, sampler: Sampler, terms: Terms, deepest: int) -> Part:
        """Lets a drafter draft, and weighs what it says."""
        began = perf_counter()
        arm.limits.price = terms.rate * (self._roster.slope * arm.record.slower + arm.level_ms) / terms.token
        part = self._weigh(arm, arm.draft(history, sampler, self._step, deepest), terms)
        self._drafters_ms += 1e3 * (perf_counter() - began)
        return part

    def _weigh(self, arm: Arm, draft: Draft, terms: Terms) -> Part:
        """Takes the part of a draft that pays."""
        part = Part(NO_DRAFT, 1.0, terms.value(1.0, 1))
        if draft.tree.tokens:
            self._guesses[arm.name] = draft
            part = best_part(draft, arm.calibration.probs(draft), terms, arm.record.slower, arm.trust)
        arm.judge(part.tokens, 1 + len(part.draft.tree))
        return part

    def _choose(self, parts: Sequence[tuple[Arm, Part]], terms: Terms, size: int) -> Draft:
        """Takes the part that is worth most, or several together; nothing if nothing is worth a pass."""
        best, second, who = Part(NO_DRAFT, 1.0, terms.value(1.0, 1)), -inf, None
        for arm, part in parts:
            if part.value > best.value or (arm.record.ahead and part.draft.tree.tokens):
                best, second, who = part, max(best.value, second), arm
            else:
                second = max(second, part.value)
        second = max(second, terms.value(1.0, 1))
        for arm, _ in parts:
            arm.gained((best.value - second) / terms.rate if arm is who else 0.0)
        if len(parts) > 1:
            best = best_together(best, parts, terms, self._abilities, size)
            who = who or max(parts, key=lambda part: part[1].value)[0]  # it may take several to be worth a pass
        nodes = len(best.draft.tree)
        if not nodes or not who:
            return self._decode_plainly()
        cost, trial = terms.rows[1 + nodes] / terms.rows[1], who is self._roster.purse.tried
        self._who = who
        self.choice = Choice(who.name, nodes, cost, best.tokens, self.meter.plain_ms, self.meter.rate, trial)
        return best.draft

    def _settle(self, now: float) -> None:
        """Takes what the last step cost, and those before it that were not timed."""
        step, self._last = self._last, None
        if step is None:
            return
        asks, wall = next((arm for arm in self._roster.awake if arm.hidden), None), 1e3 * (now - self._began)
        aside = self._drafters_ms + self._own_ms
        settled = self.books.settle(step, wall, aside, self._who, self.choice.expected, asks)
        self._plain = Choice(plain_ms=self.meter.plain_ms, rate=self.meter.rate)
        self._roster.settle(settled, self._own_ms)
