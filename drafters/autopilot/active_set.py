"""Tracks the active drafters: the cheap ones, the leader, and the one being explored."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.arm import Arm
from slipstream.drafters.autopilot.cost_model import clipped
from slipstream.drafters.autopilot.exploration import Exploration, trials
from slipstream.drafters.autopilot.throughput import Throughput
from slipstream.models.types import History, Token, shared_prefix


class Repetition:
    """Detects that a text repeats itself, in half a microsecond a token: then copying drafters are worth a trial.

    Attributes:
        streak: How many of the latest tokens in a row ended a run of tokens that had occurred before.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[Token, ...]] = set()
        self._text: list[Token] = []
        self.streak = 0

    def begin(self, tokens: Sequence[Token]) -> None:
        """Reads a prompt; what it shares with the text before is not read again."""
        shared = shared_prefix(self._text, tokens)
        if shared < settings.SAME_CHAT * len(self._text):  # runs of another chat would count as this one's
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

    Idle drafters neither draft nor observe, and cost nothing. They are tried at intervals, and so is plain decoding,
    within a small share of the time.

    Attributes:
        arms: The active drafters, which observe every step.
        leader: The drafter of most value that is not cheap; None if plain decoding is worth more.
        exploration: The trials and their budget.
        row_ms: Least milliseconds of one more row.
    """

    def __init__(self, arms: list[Arm], throughput: Throughput, most_rows: int, known: bool) -> None:
        """All drafters are idle at first.

        Args:
            arms: The drafters; those that fail are removed from this list.
            throughput: What time and tokens are worth.
            most_rows: Most rows of a pass.
            known: Whether the drafters' records are of an earlier run.
        """
        self.arms: list[Arm] = []
        self.leader: Arm | None = None
        self._all, self._throughput, self._costs = arms, throughput, throughput.costs
        self._rows = min(settings.SLOPE_ROWS, most_rows)
        self.row_ms = self._costs.row_ms(self._rows)
        self.exploration = Exploration(self._costs.rows[1], self.row_ms, known)
        self._repetition = Repetition()
        self._paid_ms = 0.0  # of all steps, at the latest review
        self._own_ms = 0.0  # the autopilot's own work in a step with active drafters
        self._quiet = True  # whether there is no trial and no leader, and all active drafters are light

    @property
    def tries_plain(self) -> bool:
        """Whether plain decoding is being explored."""
        return self.exploration.trial is not None and not self.exploration.arm

    def begin(self, history: History) -> None:
        """Starts a reply: the active drafters read the prompt."""
        self._drop_failed()
        self._costs.set_length(len(history.tokens))
        self._repetition.begin(history.tokens)
        for arm in self._all:
            arm.begin()
        for arm in self.arms:
            arm.activate(history)

    def account(self, lost_ms: float, own_ms: float) -> None:
        """Adds what a step lost, and ends a trial that lost enough.

        Args:
            lost_ms: Milliseconds that plain decoding would have saved.
            own_ms: Milliseconds of the autopilot's own work.
        """
        if self.arms:
            self._own_ms += settings.NEW * (clipped(own_ms, self._own_ms) - self._own_ms)
        if self.exploration.arm and self.exploration.lose(lost_ms, self._throughput.plain_ms):
            self.end_trial()

    def review(self, history: History, step: int, since_plain: int) -> bool:
        """Chooses the active drafters, the leader and the trial; to be called every ``REVIEW_STEPS``.

        Args:
            history: The text.
            step: Number of this step.
            since_plain: Steps without a plain one.

        Returns:
            Whether the active drafters may have changed.
        """
        total_ms = self._throughput.total_ms
        self.exploration.earn(total_ms - self._paid_ms, self._throughput.plain_ms)
        self._paid_ms = total_ms
        self._repetition.follow(history.tokens)
        if self._repetition.streak >= settings.STREAK:
            self._repetition.streak = 0
            self._activate_light(history)
        failed = any(arm.drafter.failed for arm in self.arms)
        if failed:
            self._drop_failed()
        full = step % settings.FULL_REVIEW_STEPS == 0
        if full:
            self._costs.set_length(len(history.tokens))
        unchanged = not self.exploration.affordable and all(map(self._stays, self.arms))
        if unchanged and self._quiet and not failed and not full:
            return False
        tried = self.exploration.arm
        if tried and tried.drafter.reading_ms(history):
            return False  # its trial continues until it has read the text
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
        self.exploration.begin(trials(idle, self.leader, objective, history, step, waits, own_ms))
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
        """Disables the drafters that have failed; the reply continues with the others."""
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
        """Activates the best light drafter if none is active: the text repeats itself, and the drafter may copy."""
        light = [arm for arm in self._all if arm.cheap(self._costs.rows[1], settings.LIGHT)]
        if any(arm in self.arms for arm in light):
            return
        best = max(light, key=lambda arm: (arm.record.gain_ms, -arm.calls_ms), default=None)
        if best:
            self.arms.append(best)
            best.activate(history)

    def _stays(self, arm: Arm) -> bool:
        """Whether calling a drafter at every step pays, though it does not lead."""
        if arm.hidden or arm.record.ahead:
            return False
        step_ms = arm.calls_ms + (0.0 if self.leader else self._own_ms)
        patience_ms = settings.PATIENCE * self._throughput.plain_ms
        settling = arm.cheap(self._costs.rows[1], settings.LIGHT) and arm.settling(step_ms, patience_ms)
        return settling or arm.record.gain_ms > step_ms
