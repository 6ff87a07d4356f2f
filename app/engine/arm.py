"""One drafter in the autopilot's hands: what it costs, what it promises, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from slipstream.app.engine.calibration import DEPTH, Calibration
from slipstream.app.engine.pruning import Terms
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Step
from slipstream.models.sampling import Sampler
from slipstream.models.types import History

_NEW: Final = 0.1  # weight of the latest step in an average, once there are enough of them
_STALE: Final = 0.3  # the same for the first steps after a rest
_GAIN: Final = 0.03  # the same for what it gains, which comes seldom and in large pieces
_SETTLED: Final = 24  # steps in which a drafter is asked after a rest before it may rest again, at the most
_FURTHER: Final = 4  # nodes that a draft may go deeper than the best one of late was right
_FORGET: Final = 0.98  # of that depth, with each draft that was not so good
_DISTURBED: Final = 4.0
"""What took more times as long as usual was held up by something else, and counts as if it had taken so many times."""

_LEAST_MS: Final = 0.01  # below it no clock tells times apart
_CAUTION: Final = 0.9
_BELIEF: Final = 4.0  # tokens for which what is expected is believed at first
_FADE: Final = 0.97  # of what came of older drafts, with each one after them
_CHEAP: Final = 0.05  # share of a plain pass up to which a drafter may be asked in vain
LIGHT: Final = 0.15
"""Share of a plain pass up to which a drafter is woken when the text repeats itself."""

_GUESS: Final = (1.6, 3.0, 0.1)
"""What a drafter that was never asked is taken to bring: tokens, rows, milliseconds as a share of a plain pass."""


@dataclass(slots=True)
class Limits:
    """The ``worth`` of one arm.

    Attributes:
        factor: Correction of a path's probability by its depth.
        price: Least probability of a path that is worth a node.
        deepest: Most nodes deep.
    """

    factor: Sequence[float]
    price: float = 1.0
    deepest: int = 0

    def __call__(self, probability: float, depth: int) -> bool:
        """Whether a node at this depth, on a path of this probability, pays."""
        return depth <= self.deepest and probability * self.factor[min(depth, DEPTH)] >= self.price


@dataclass(slots=True)
class Record:
    """What is known of a drafter, kept from one run to the next.

    Averages are over the steps in which it was asked, whether or not its draft was taken.

    Attributes:
        asked: Times that it was asked.
        judged: Times that what it would bring was known.
        tokens: Tokens that a step of it brings.
        rows: Rows that a step of it has.
        draft_ms: Milliseconds that its drafting takes.
        hear_ms: Milliseconds that its hearing of a step takes.
        gain_ms: Milliseconds that it saves a step over the next best choice.
        slower: How many times longer a pass takes for the hidden states that it asks for.
        ahead: Whether it drafts for later steps too (probes), so that no single draft shows its worth.
        expected: Drafted tokens that were expected of its chosen drafts, the older ones faded.
        came: Those that came.
    """

    asked: int = 0
    judged: int = 0
    tokens: float = 1.0
    rows: float = 1.0
    draft_ms: float = 0.0
    hear_ms: float = 0.0
    gain_ms: float = 0.0
    slower: float = 1.0
    ahead: bool = False
    expected: float = _BELIEF
    came: float = _BELIEF


class Arm:
    """A drafter, its record and its calibration.

    Attributes:
        name: The drafter's name.
        drafter: The drafter.
        record: What is known of it.
        calibration: What its probabilities mean.
        limits: Its ``worth``.
        hidden: Whether it asks for hidden states.
        last: The autopilot's step in which it was asked last.
    """

    def __init__(self, name: str, drafter: Drafter) -> None:
        """Knows nothing of it yet."""
        self.name, self.drafter = name, drafter
        self.hidden = bool(drafter.needs.hidden)
        self.record, self.calibration = Record(), Calibration()
        self.limits = Limits(self.calibration.path)
        self.last = 0
        self._begun = False  # whether it has heard of this reply
        self._fresh = 0  # times that it was asked since it was woken
        self._silent = 0  # times that it was asked and drafted nothing, since the records were last brought up to date
        self._heard = False  # whether it has heard a step since it was woken
        self._depth = self._spread = self._together = 0.0  # mean and moments that tell what a level costs
        self._right = 0.0  # how deep its drafts were right of late
        self._reads = False  # whether it reads, so that its last draft shows nothing

    @property
    def costs_ms(self) -> float:
        """Milliseconds a step to ask it and to let it hear."""
        return self.record.draft_ms + self.record.hear_ms

    @property
    def level_ms(self) -> float:
        """Milliseconds that one more level of its draft takes; 0 where drafts of all depths take the same."""
        return max(0.0, self._together / (self._spread + 0.05))

    @property
    def ready(self) -> bool:
        """Whether it can draft: hidden states come with the first step that it hears."""
        return self._heard or not self.hidden

    @property
    def trust(self) -> float:
        """What came of the drafts that were chosen, against what was expected of them.

        Who is chosen because it promises most has often promised too much (the winner's curse), and what hardly pays is
        not worth the risk.
        """
        return _CAUTION * min(self.record.came / self.record.expected, 1.0)

    def settling(self, step_ms: float, most_ms: float) -> bool:
        """Whether it was woken so lately that what it gains is not known.

        Args:
            step_ms: What it takes to have it awake for a step.
            most_ms: What that may have come to since it was woken.
        """
        return self._fresh < _SETTLED and self._fresh * step_ms < most_ms

    def cheap(self, plain_ms: float, share: float = _CHEAP) -> bool:
        """Whether it may be asked in vain: asking costs no more than this share of a plain pass."""
        known = self.record.asked > 2 and not self.record.ahead and not self.hidden
        return known and self.costs_ms < share * plain_ms

    def promise(self, terms: Terms) -> float:
        """What a step of it is worth, by its record (see ``Terms.value``)."""
        record = self.record
        if record.judged:
            return terms.value(record.tokens, record.rows, self.costs_ms, record.slower)
        tokens, rows, share = _GUESS
        return terms.value(tokens, rows, self.costs_ms or share * terms.rows[1])

    def begin(self) -> None:
        """Notes that a reply begins; it hears of it when it is woken."""
        self._begun = False

    def wake(self, history: History) -> None:
        """Lets it hear the steps from now on."""
        if not self._begun:
            self.drafter.begin(history)
            self._begun = True

    def rest(self) -> None:
        """Notes that it hears no steps from now on."""
        self._fresh, self._heard = 0, False

    def draft(self, history: History, sampler: Sampler, step: int, deepest: int) -> Draft:
        """Asks it for a draft of at most ``deepest`` levels, and notes what that took.

        It may go little deeper than it was right before: one that is sure of itself and wrong would cost a long pass.
        """
        self._catch_up()
        record = self.record
        self.limits.deepest = min(deepest, int(self._right) + _FURTHER) if record.asked else 1
        self._reads = self.drafter.reading_ms(history) > 0
        began = perf_counter()
        draft = self.drafter.draft(history, self.limits, sampler)
        took = 1e3 * (perf_counter() - began)
        self.last = step
        if self._reads:
            return draft
        record.asked += 1
        self._fresh += 1
        weight = self._weight(record.asked)
        depth = draft.tree.depth if draft.tree.tokens else 0
        if record.asked == 1:
            self._depth, record.draft_ms = depth, took
        elif depth <= self._depth + 1:  # a deeper draft may take as long as it will
            took = min(took, _DISTURBED * max(record.draft_ms, _LEAST_MS))
        apart = depth - self._depth
        self._depth += weight * apart
        self._spread += weight * (apart * apart - self._spread)
        self._together += weight * (apart * (took - record.draft_ms) - self._together)
        record.draft_ms += weight * (took - record.draft_ms)
        record.ahead = record.ahead or bool(draft.tree.probes)
        return draft

    def glance(self, history: History, sampler: Sampler) -> Draft:
        """Asks it without timing it, at the price of the last time."""
        self.limits.deepest = int(self._right) + _FURTHER
        draft = self.drafter.draft(history, self.limits, sampler)
        self._fresh += 1
        if not draft.tree.tokens:
            self._silent += 1
        else:
            self._catch_up()
            self.record.asked += 1
            self._reads = False
        return draft

    def _catch_up(self) -> None:
        """Takes into the records how often it said nothing: each time a step of one token and one row."""
        if not self._silent:
            return
        record, kept = self.record, (1 - _NEW) ** self._silent
        record.asked += self._silent
        record.judged += self._silent
        record.tokens, record.rows = 1 + kept * (record.tokens - 1), 1 + kept * (record.rows - 1)
        record.gain_ms *= (1 - _GAIN) ** self._silent
        self._silent = 0

    def judge(self, tokens: float, rows: int) -> None:
        """Notes what its draft is expected to bring, and how many rows it has."""
        record = self.record
        if self._reads or (record.ahead and self._fresh < 2):
            return  # the first one after a rest was for later steps alone
        record.judged += 1
        weight = self._weight(record.judged)
        record.tokens += weight * (tokens - record.tokens)
        record.rows += weight * (rows - record.rows)

    def gained(self, milliseconds: float) -> None:
        """Notes what it saved in a step."""
        self.record.gain_ms += _GAIN * (milliseconds - self.record.gain_ms)

    def hear(self, history: History, step: Step, guess: Draft = NO_DRAFT) -> None:
        """Lets it hear a step, compares what it had guessed, and notes what that took."""
        began = perf_counter()
        self.listen(history, step, guess)
        self._heard = True
        took, usual = 1e3 * (perf_counter() - began), max(self.record.hear_ms, _LEAST_MS)
        self.record.hear_ms += _NEW * (min(took, _DISTURBED * usual) - self.record.hear_ms)

    def listen(self, history: History, step: Step, guess: Draft = NO_DRAFT) -> None:
        """The same without timing it."""
        self.drafter.observe(history, step)
        if guess.tree.tokens:
            self._right = max(_FORGET * self._right, self.calibration.hear(guess, step.tokens))

    def chosen(self, expected: float, came: int) -> None:
        """Notes how many drafted tokens were expected of a draft that was chosen, and how many came."""
        record = self.record
        record.expected = _FADE * record.expected + expected / self.trust  # what it said itself
        record.came = _FADE * record.came + came

    def passed(self, ratio: float) -> None:
        """Notes how many times longer than usual a pass took while it asked for hidden states."""
        self.record.slower += _NEW * (min(max(ratio, 0.7), 2.0) - self.record.slower)

    def _weight(self, count: int) -> float:
        """Of the latest step in an average of ``count``."""
        return max(1 / count, _STALE if self._fresh <= 3 else _NEW)
