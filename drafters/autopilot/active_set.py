"""Tracks the active drafters: the cheap ones, the leader, and one on trial within the exploration budget."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.cost_model import clipped
from slipstream.drafters.autopilot.throughput import ThroughputMeter
from slipstream.drafters.autopilot.tree_pruning import Objective
from slipstream.models.memory.row_cost import GOOD_ROWS, GOOD_TOKENS
from slipstream.models.types import History, Token, shared_prefix


@dataclass(frozen=True, slots=True)
class Trial:
    """A possible trial of an idle drafter or of plain decoding."""

    arm: Arm | None  # the idle drafter; None for plain decoding
    milliseconds: float  # the price: the time that the trial is expected to lose
    waited: int  # steps since it was used last
    most_ms: float = inf  # the time that it may win in this reply


class Exploration:
    """The budget of trials: a share of the elapsed time, spent on the time that trials lose.

    Of the trials within the budget, the one that waited most steps per millisecond of its price begins. So a drafter
    that is nearly as good as the best is tried often, a costly one rarely.
    """

    def __init__(self, plain_ms: float, row_ms: float, known: bool) -> None:
        """Starts with a small budget, larger where rows are cheap; none if drafters are known from an earlier run."""
        least, most = settings.FIRST_STEPS
        self.milliseconds = 0.0 if known else min(max(plain_ms / max(row_ms, 1e-6), least), most) * plain_ms
        self.trial: Trial | None = None
        self._price = 0.0  # of the cheapest trial when one was last chosen
        self._most_ms = settings.MOST_SAVED * plain_ms
        self._lost_ms, self._asked = 0.0, 0  # by this trial, and its drafter's drafts before it

    @property
    def affordable(self) -> bool:
        """Whether the budget covers the cheapest trial, by its price when one was last chosen."""
        return self.milliseconds >= self._price

    @property
    def arm(self) -> Arm | None:
        """The drafter on trial; None if there is no trial, or one of plain decoding."""
        return self.trial.arm if self.trial else None

    def earn(self, milliseconds: float, plain_ms: float) -> None:
        """Adds time that trials may lose to the budget."""
        self._most_ms = settings.MOST_SAVED * plain_ms
        self.milliseconds = min(self.milliseconds + milliseconds, self._most_ms)

    def lose(self, milliseconds: float, plain_ms: float) -> bool:
        """Adds the time that a step of the trial lost; returns whether the trial should end early."""
        self._lost_ms += milliseconds
        if self.trial is None or self.arm is None:
            return False
        brief = plain_ms < settings.BRIEF_MS and self.arm.timed and not self.arm.cheap(plain_ms, settings.LIGHT)
        enough = brief and self.arm.record.asked - self._asked >= settings.BRIEF_STEPS
        return enough or self._lost_ms > self.trial.milliseconds + settings.TRIAL_LOSS * plain_ms

    def end(self, plain_ms: float) -> Arm | None:
        """Ends the trial, takes its loss beyond its price from the budget, and returns its drafter."""
        trial, self.trial = self.trial, None
        if trial:
            beyond = max(0.0, self._lost_ms - trial.milliseconds)
            self.milliseconds = max(self.milliseconds - beyond, -settings.MOST_OWED * plain_ms)
        self._lost_ms = 0.0
        return trial.arm if trial else None

    def begin(self, trials: Iterable[Trial]) -> None:
        """Begins the most urgent trial within the budget, if there is one, and spends its price."""
        best, most, self._price = None, 0.0, inf
        for trial in trials:
            price, urgency = min(trial.milliseconds, self._most_ms), trial.waited / trial.milliseconds
            self._price = min(self._price, price)
            if price <= self.milliseconds and trial.milliseconds < trial.most_ms and urgency > most:
                best, most = trial, urgency
        if best:
            self.milliseconds -= best.milliseconds
        self.trial = best
        self._asked = self.arm.record.asked if self.arm else 0


def trials(
    idle: Iterable[Arm],
    leader: Arm | None,
    objective: Objective,
    history: History,
    *,
    step: int,
    written: int,
    since_plain: int,
    own_ms: float,
    change_ms: float = 0.0,
) -> Iterator[Trial]:
    """The possible trials, with the time that each is expected to lose.

    A drafter is tried if the rest of the reply can win back what the trial loses: it is expected to be as long as what
    was written so far, and each of its steps to be a very good one of the drafter.

    Args:
        written: Tokens of the reply so far.
        since_plain: Steps since the last plain one; 0 while no drafter is active.
        own_ms: Milliseconds of the autopilot's own work in a step; 0 if other drafters are active anyway.
    """
    plain, plain_ms = objective.plain, objective.rows[1]
    best = max(plain, leader.value(objective)) if leader else plain
    activation = settings.ACTIVATION * plain_ms
    for arm in idle:
        if arm.hidden and not arm.begun:
            continue  # without the prompt it guesses badly, which would count against it
        most = most_value(arm, objective) / objective.rate
        if most <= 0:
            continue
        if arm.cheap(plain_ms):
            loss = settings.LISTEN_STEPS * (arm.calls_ms + own_ms)
        else:
            steps = settings.BRIEF_STEPS if plain_ms < settings.BRIEF_MS and arm.timed else settings.REVIEW_STEPS
            loss = steps * (max(0.0, best - arm.value(objective)) / objective.rate + own_ms)
            changes = 3 if arm.hidden else 1  # hidden states change the graph as well, there and back
            loss += arm.drafter.reading_ms(history) + changes * change_ms
        yield Trial(arm, loss + activation, step - arm.last_step, most * written)
    if since_plain > settings.IDLE_FULL_STEPS * (1 + change_ms / plain_ms):
        loss = settings.REVIEW_STEPS * (best - plain) / objective.rate + 2 * change_ms  # there and back
        yield Trial(None, loss + activation, since_plain)


def most_value(arm: Arm, objective: Objective) -> float:
    """What a very good step of a drafter is worth over a plain one."""
    return objective.value(GOOD_TOKENS, GOOD_ROWS, arm.calls_ms) - objective.plain


class Repetition:
    """Detects that a text repeats itself, in half a microsecond per token; copying drafters are then worth a trial.

    Attributes:
        streak: Number of latest tokens in a row that each ended an n-gram which had occurred before.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[Token, ...]] = set()
        self._text: list[Token] = []
        self.streak = 0

    def begin(self, tokens: Sequence[Token]) -> None:
        """Reads a prompt; the prefix that it shares with the previous text is not read again."""
        shared = shared_prefix(self._text, tokens)
        if shared < settings.SAME_CHAT * len(self._text):  # n-grams of another chat are not repetitions
            self._seen.clear()
            shared = 0
        self._text[shared:] = tokens[shared:]
        text = self._text
        first = max(shared, settings.GRAM)
        self._seen.update(tuple(text[end - settings.GRAM : end]) for end in range(first, len(text) + 1))
        self.streak = 0

    def follow(self, tokens: Sequence[Token]) -> None:
        """Reads the new tokens of a text that only grows."""
        text, seen = self._text, self._seen
        for token in tokens[len(text) :]:
            text.append(token)
            gram = tuple(text[-settings.GRAM :])
            if gram in seen:
                self.streak += 1
            else:
                self.streak = 0
                seen.add(gram)


class ActiveSet:
    """Activates and deactivates drafters.

    Idle drafters neither draft nor observe, and cost nothing. Idle drafters and plain decoding are tried at intervals,
    within a small share of the time.

    Attributes:
        arms: The active drafters, which observe every step.
        leader: Of the drafters that are not cheap, the one of highest value; None if plain decoding is worth more.
        exploration: The trials and their budget.
    """

    def __init__(self, arms: list[Arm], throughput: ThroughputMeter, most_rows: int, known: bool) -> None:
        """All drafters are idle at first; those that fail are removed from the list ``arms``."""
        self.arms: list[Arm] = []
        self.leader: Arm | None = None
        self._all, self._throughput, self._costs = arms, throughput, throughput.costs
        self._rows = min(settings.SLOPE_ROWS, most_rows)
        self.row_ms = self._costs.row_ms(self._rows)
        self.exploration = Exploration(self._costs.rows[1], self.row_ms, known)
        self._repetition = Repetition()
        self._prompt = 0  # tokens before the reply
        self._paid_ms = 0.0  # time of all steps up to the latest review
        self._own_ms = 0.0  # the autopilot's own work in a step with active drafters
        self._quiet = True  # whether there is no trial and no leader, and all active drafters are light

    @property
    def tries_plain(self) -> bool:
        """Whether plain decoding is being explored."""
        return self.exploration.trial is not None and not self.exploration.arm

    @property
    def idle(self) -> bool:
        """Whether no drafter is active, and plain decoding is not being explored."""
        return not self.arms and not self.exploration.trial

    def repeats(self, history: History) -> bool:
        """Whether the text has begun to repeat itself; a review then activates a copying drafter."""
        self._repetition.follow(history.tokens)
        return self._repetition.streak >= settings.STREAK

    def begin(self, history: History) -> None:
        self._drop_failed()
        self._prompt = len(history.tokens)
        self._costs.set_length(self._prompt)
        self._repetition.begin(history.tokens)
        for arm in self._all:
            arm.begin()
        for arm in self.arms:
            arm.activate(history)

    def readers(self) -> list[Arm]:
        """The drafters that take the hidden states of the next reply: the active ones, and those that may be tried."""
        objective = self._throughput.objective()
        hidden = [arm for arm in self._all if arm.hidden and (arm in self.arms or most_value(arm, objective) > 0)]
        best = max((arm for arm in hidden if arm.record.judged), key=lambda arm: arm.value(objective), default=None)
        return [arm for arm in hidden if arm.listens(arm is best) or arm in self.arms]

    def account(self, lost_ms: float, own_ms: float) -> None:
        """Adds the time that plain decoding would have saved in a step, and ends a trial that has lost too much."""
        if self.arms:
            self._own_ms += settings.NEW * (clipped(own_ms, self._own_ms) - self._own_ms)
        if self.exploration.arm and self.exploration.lose(lost_ms, self._throughput.plain_ms):
            self.end_trial()

    def review(self, history: History, step: int, since_plain: int) -> bool:
        """Chooses the active drafters, the leader and the trial; returns whether the active ones may have changed."""
        total_ms = self._throughput.total_ms
        unknown = any(arm.begun and arm.hidden and arm.record.judged < settings.JUDGED for arm in self._all)
        share = (
            settings.NEW_SHARE if unknown and self._throughput.plain_ms > settings.BRIEF_MS else settings.EXPLORE_SHARE
        )
        self.exploration.earn(share * (total_ms - self._paid_ms), self._throughput.plain_ms)
        self._paid_ms = total_ms
        if self.repeats(history):
            self._repetition.streak = 0
            self._activate_light(history)
        failed = any(arm.drafter.failed for arm in self.arms)
        if failed:
            self._drop_failed()
        full = step % (settings.FULL_REVIEW_STEPS if self.arms else settings.IDLE_FULL_STEPS) == 0
        full, self._costs.started = full or self._costs.started, False
        if full:
            self._costs.set_length(len(history.tokens))
        unchanged = not self.exploration.affordable and all(map(self._stays, self.arms))
        if unchanged and self._quiet and not failed and not full:
            return False
        tried = self.exploration.arm
        if tried and tried.drafter.reading_ms(history):
            return False  # the trial continues until its drafter has read the text
        self.row_ms = self._costs.row_ms(self._rows)
        objective = self._throughput.objective()
        plain_pass = objective.rows[1]
        self.leader = self._find_leader(plain_pass)
        active = [arm for arm in self.arms if arm is not self.leader and self._stays(arm)]
        if self.leader:
            active.append(self.leader)
        self.exploration.end(self._throughput.plain_ms)
        idle = [arm for arm in self._all if arm not in active]
        waits, own_ms = (since_plain, 0.0) if active else (0, self._own_ms)
        change_ms = self._costs.width.change_ms
        self.exploration.begin(
            trials(
                idle,
                self.leader,
                objective,
                history,
                step=step,
                written=len(history.tokens) - self._prompt,
                since_plain=waits,
                own_ms=own_ms,
                change_ms=change_ms,
            )
        )
        if self.exploration.arm:
            active.append(self.exploration.arm)
        for arm in self.arms:
            if arm not in active:
                arm.deactivate()
        for arm in active:
            arm.activate(history)
        self.arms = active
        self._quiet = not (self.exploration.trial or self.leader) and all(
            arm.cheap(plain_pass, settings.LIGHT) for arm in active
        )
        return True

    def end_trial(self) -> None:
        """Ends the trial; its drafter is deactivated unless it leads."""
        arm = self.exploration.end(self._throughput.plain_ms)
        if arm and arm is not self.leader:
            arm.deactivate()
            self.arms.remove(arm)

    def _drop_failed(self) -> None:
        """Removes the drafters that have failed; the reply continues with the others."""
        if self.exploration.arm and self.exploration.arm.drafter.failed:
            self.exploration.end(self._throughput.plain_ms)
        if self.leader and self.leader.drafter.failed:
            self.leader = None
        self.arms = [arm for arm in self.arms if not arm.drafter.failed]
        self._all[:] = [arm for arm in self._all if not arm.drafter.failed]

    def _find_leader(self, plain_pass: float) -> Arm | None:
        objective = self._throughput.objective()
        known = [arm for arm in self._all if arm.record.judged and not arm.cheap(plain_pass)]
        best = max(known, key=lambda arm: arm.value(objective), default=None)
        pays = best and best.value(objective) > objective.plain + objective.rate * self._own_ms
        return best if pays else None

    def _activate_light(self, history: History) -> None:
        """Activates the best light drafter if none is active: it may be able to copy the repetition."""
        light = [arm for arm in self._all if arm.cheap(self._costs.rows[1], settings.LIGHT)]
        if any(arm in self.arms for arm in light):
            return
        best = max(light, key=lambda arm: (arm.record.gain_ms, -arm.calls_ms), default=None)
        if best:
            self.arms.append(best)
            best.activate(history)

    def _stays(self, arm: Arm) -> bool:
        """Whether it pays to call a drafter at every step although it is not the leader."""
        if arm.hidden or arm.record.ahead:
            return False
        step_ms = arm.calls_ms + (0.0 if self.leader else self._own_ms)
        patience_ms = settings.PATIENCE * self._throughput.plain_ms
        settling = arm.cheap(self._costs.rows[1], settings.LIGHT) and arm.settling(step_ms, patience_ms)
        return settling or arm.record.gain_ms > step_ms
