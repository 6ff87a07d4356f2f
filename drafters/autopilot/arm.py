"""One drafter of the autopilot: its record, the calibration of its probabilities, and the limits of its drafts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from slipstream.drafters.autopilot import settings
from slipstream.drafters.autopilot.cost_model import clipped
from slipstream.drafters.autopilot.tree_pruning import Candidate, Objective, prune
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Step
from slipstream.drafters.calibration import Ratio
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History, Token, TokenTree


def outcomes(steady: bool) -> Ratio[float]:
    """Counts how often guesses are right; ``steady`` for a network, whose probabilities hold for all texts alike."""
    decay, prior = (settings.STEADY_DECAY, settings.STEADY_PRIOR) if steady else (settings.DECAY, settings.PRIOR)
    return Ratio(decay, prior, prior)


class Calibration:
    """Corrects a drafter's probabilities by how often its drafts were right at each depth.

    A depth is observed if the draft was right at all depths above it, even if the draft was not evaluated. Positions
    below the first wrong token are censored: neither right nor wrong. So a depth's correction applies to a probability
    given the path above, and a path's correction is the product of those of its depths.

    Attributes:
        paths: Correction of the probability of a path by its depth; index 0 is the empty path.
    """

    def __init__(self, steady: bool = False) -> None:
        """Starts with the probabilities as they are; ``steady``: see ``outcomes``."""
        self._outcomes = [outcomes(steady) for _ in range(settings.DEPTHS)]
        self._ratio = [1.0] * settings.DEPTHS  # by depth: the correction of a probability given the path above
        self.paths = [1.0] * (settings.DEPTHS + 1)

    def probs(self, draft: Draft) -> list[float]:
        """The corrected probability of each node of a draft given its parent."""
        ratio, last = self._ratio, settings.DEPTHS - 1
        if draft.tree.leaves == 1 and len(draft.probs) <= settings.DEPTHS:
            return [min(prob * each, settings.SUREST) for prob, each in zip(draft.probs, ratio, strict=False)]
        return [
            min(prob * ratio[min(depth - 1, last)], settings.SUREST)
            for prob, depth in zip(draft.probs, draft.tree.depths, strict=True)
        ]

    def observe(self, draft: Draft, tokens: Sequence[Token]) -> int:
        """Compares a draft with the target's tokens, even if it was not evaluated; returns how deep it was right."""
        tree, node, depth = draft.tree, ROOT, 0
        for at, token in enumerate(tokens[: settings.DEPTHS]):
            expected, child = 0.0, None
            for other in _children(tree, node):
                expected += draft.probs[other]
                if tree.tokens[other] == token:
                    child = other
            if not expected:
                break
            outcomes = self._outcomes[at]
            outcomes.add(child is not None, expected)
            self._ratio[at] = min(outcomes.value(), settings.MOST_CORRECTION)
            if child is None:
                break
            node, depth = child, at + 1
        for at, ratio in enumerate(self._ratio):
            self.paths[at + 1] = self.paths[at] * max(ratio, settings.LEAST_CORRECTION)
        return depth


def _children(tree: TokenTree, node: int) -> list[int]:
    """The children of a node that may be accepted."""
    if tree.leaves == 1 and not tree.probes:
        return [node + 1] if node + 1 < len(tree) else []
    found: list[int] = []
    for other in range(node + 1, len(tree)):
        parent = tree.parents[other]
        if parent < node:
            break  # depth first: the node's sub-tree has ended
        if parent == node and other not in tree.probes:
            found.append(other)
    return found


@dataclass(slots=True)
class NodeLimits:
    """Whether one more node of a draft pays; see ``ShouldExtend``."""

    corrections: Sequence[float]  # of a path's probability, by its depth
    least: float = 1.0  # least probability of a path that pays
    deepest: int = 0

    def __call__(self, probability: float, depth: int) -> bool:
        return depth <= self.deepest and probability * self.corrections[min(depth, settings.DEPTHS)] >= self.least


@dataclass(slots=True)
class ArmRecord:
    """What is known of a drafter, kept between runs.

    Averages are over the steps in which it drafted, whether or not its draft was verified.
    """

    asked: int = 0  # drafts that it made
    judged: int = 0  # its drafts whose value was estimated
    tokens: float = 1.0  # expected of its steps
    rows: float = 1.0  # of its steps
    usual_tokens: float = 1.0  # expected of its steps, over several replies
    usual_rows: float = 1.0  # of its steps, over several replies
    draft_ms: float = 0.0  # that it takes to draft
    observe_ms: float = 0.0  # that it takes to observe a step
    gain_ms: float = 0.0  # that it saves in a step over the next best choice
    slower: float = 1.0  # slowdown factor of a pass that returns the hidden states it needs
    ahead: bool = False  # whether its drafts have probes: these pay in later steps, so no draft shows its value
    # accepted tokens of its chosen drafts, over the tokens that these drafts promised
    outcomes: Ratio[float] = field(default_factory=lambda: outcomes(False))


class Arm:
    """A drafter with its record and its calibration."""

    def __init__(self, name: str, drafter: Drafter, clock: Callable[[], float] = perf_counter) -> None:
        self.name, self.drafter = name, drafter
        steady = bool(drafter.needs.hidden)
        self.record, self.calibration = ArmRecord(outcomes=outcomes(steady)), Calibration(steady)
        self.limits = NodeLimits(self.calibration.paths)
        self.last_step = 0  # the autopilot's step in which it drafted last
        self.took_ms = 0.0  # milliseconds of its drafter's latest call
        self._clock = clock
        self._heard = 0  # prompts that it read before it was tried
        self.begun = False  # whether its drafter began this reply
        self._fresh = 0  # drafts since it was activated
        self._observed = False  # whether it observed a step since it was activated
        self._draft = NO_DRAFT  # its draft of this step, not pruned
        self._reads = False  # whether it is still reading the text; its drafts are then not representative
        self._right = 0.0  # depth to which its recent drafts were right
        self._depth = self._spread = self._covariance = 0.0  # moments of depth and time, for ``level_ms``

    @property
    def hidden(self) -> bool:
        """Whether it needs hidden states; a failed drafter does not."""
        return bool(self.drafter.needs.hidden)

    @property
    def calls_ms(self) -> float:
        """Milliseconds per step that it takes to draft and observe."""
        return self.record.draft_ms + self.record.observe_ms

    @property
    def timed(self) -> bool:
        """Whether the time of its calls is known."""
        return self.record.asked >= settings.FRESH_STEPS

    @property
    def level_ms(self) -> float:
        """Milliseconds of one more level of its draft; 0 if depth makes no difference."""
        return max(0.0, self._covariance / (self._spread + settings.LEVEL_SPREAD))

    @property
    def ready(self) -> bool:
        """Whether it can draft: hidden states come with the first step that it observes."""
        return self._observed or not self.hidden

    @property
    def trust(self) -> float:
        """The accepted share of the tokens that its chosen drafts promised, times ``CAUTION``.

        It lowers estimates, since the draft with the highest one is often overestimated (the winner's curse).
        """
        return settings.CAUTION * min(self.record.outcomes.value(), 1.0)

    def settling(self, step_ms: float, most_ms: float) -> bool:
        """Whether its gain is not known yet, and its calls at ``step_ms`` each have cost less than ``most_ms``."""
        return self._fresh < settings.LISTEN_STEPS and self._fresh * step_ms < most_ms

    def cheap(self, plain_ms: float, share: float = settings.CHEAP) -> bool:
        """Whether calling it without using the draft is affordable: it takes at most this share of a plain pass."""
        return self.timed and not (self.record.ahead or self.hidden) and self.calls_ms < share * plain_ms

    def value(self, objective: Objective) -> float:
        """The value of a step that it drafts, by its record (see ``Objective.value``)."""
        record = self.record
        if record.judged:
            return objective.value(record.tokens, record.rows, self.calls_ms, record.slower)
        milliseconds = self.calls_ms or settings.GUESS_SHARE * objective.rows[1]
        return objective.value(settings.GUESS_TOKENS, settings.GUESS_ROWS, milliseconds, record.slower)

    def begin(self) -> None:
        """Starts a reply; its drafter begins when the arm is activated."""
        self.begun, self._draft = False, NO_DRAFT
        self.record.tokens, self.record.rows = self.record.usual_tokens, self.record.usual_rows

    def listens(self, best: bool) -> bool:
        """Whether it reads the next prompt: until it is judged, in every ``HEARD``-th reply, or as the ``best``."""
        self._heard += 1
        return best or not self.record.judged or self._heard % settings.HEARD == 0

    def activate(self, history: History) -> None:
        """Lets its drafter observe the steps from now on."""
        if not self.begun:
            self.drafter.begin(history)
            self.begun = True

    def deactivate(self) -> None:
        """Resets what holds only while its drafter observes the steps."""
        self._fresh, self._observed, self._draft = 0, False, NO_DRAFT

    def draft(self, history: History, sampler: Sampler, step: int, deepest: int) -> Draft:
        """Drafts at most ``deepest`` levels, within ``limits``, and times it.

        A draft goes at most ``DEEPER`` levels beyond recent right depths: a confident wrong draft costs a long pass.
        """
        record = self.record
        self.limits.deepest = min(deepest, int(self._right) + settings.DEEPER) if record.asked else 1
        self._reads = self.drafter.reading_ms(history) > 0
        began = self._clock()
        draft = self._draft = self.drafter.draft(history, self.limits, sampler)
        took = 1e3 * (self._clock() - began)
        self.took_ms = took
        self.last_step = step
        if self._reads:
            return draft
        record.asked += 1
        self._fresh += 1
        weight = self._weight(record.asked)
        depth = draft.own_depth
        if record.asked == 1:
            self._depth, record.draft_ms = depth, took
        elif depth <= self._depth + 1:  # a much deeper draft may take much longer
            took = clipped(took, record.draft_ms)
        deeper, longer = depth - self._depth, took - record.draft_ms
        self._depth += weight * deeper
        self._spread += weight * (deeper * deeper - self._spread)
        self._covariance += weight * (deeper * longer - self._covariance)
        record.draft_ms += weight * longer
        if draft.tree.probes:
            record.ahead = True
        return draft

    def set_price(self, objective: Objective, row_ms: float) -> None:
        """Limits its drafts to paths that pay for their last row, which takes at least ``row_ms``."""
        self.limits.least = objective.rate * (row_ms * self.record.slower + self.level_ms) / objective.token

    def judge(self, draft: Draft, objective: Objective, nothing: Candidate) -> Candidate:
        """Prunes its draft to the part that pays; ``nothing`` is the candidate of an empty draft."""
        candidate, record = nothing, self.record
        if draft.tree.tokens:
            candidate = prune(draft, self.calibration.probs(draft), objective, record.slower, self.trust)
        if not self._reads and (self._fresh > 1 or not record.ahead):  # a first draft of probes gains nothing yet
            record.judged += 1
            weight = self._weight(record.judged)
            record.tokens += weight * (candidate.tokens - record.tokens)
            rows, slow = 1 + len(candidate.draft.tree), max(1 / record.judged, settings.GAIN)
            record.rows += weight * (rows - record.rows)
            record.usual_tokens += slow * (candidate.tokens - record.usual_tokens)
            record.usual_rows += slow * (rows - record.usual_rows)
        return candidate

    def observe(self, history: History, step: Step) -> None:
        """Passes a step on to its drafter, compares the draft with the step, and times both."""
        began, draft = self._clock(), self._draft
        self.drafter.observe(history, step)
        if draft.tree.tokens:
            self._right = max(settings.DECAY * self._right, self.calibration.observe(draft, step.tokens))
            self._draft = NO_DRAFT
        self._observed = True
        self.took_ms, usual = 1e3 * (self._clock() - began), self.record.observe_ms
        self.record.observe_ms += settings.NEW * (clipped(self.took_ms, usual) - usual)

    def follow(self, history: History, step: Step) -> None:
        """Passes a step on to its idle drafter, so that its next trial shows what it can do."""
        self.drafter.observe(history, step)
        self._observed = True

    def add_gain(self, milliseconds: float) -> None:
        self.record.gain_ms += settings.GAIN * (milliseconds - self.record.gain_ms)

    def add_outcome(self, expected: float, accepted: int) -> None:
        """Adds how many tokens of a chosen draft were expected to be accepted, and how many were."""
        self.record.outcomes.add(accepted, expected / self.trust)  # without the factor ``trust``

    def add_slowdown(self, ratio: float) -> None:
        """Adds how many times longer a pass took because it returned hidden states."""
        usual = self.record.slower
        ratio = min(max(ratio, usual / settings.OUTLIER), usual * settings.OUTLIER)
        self.record.slower += settings.NEW * (ratio - self.record.slower)

    def _weight(self, count: int) -> float:
        """Weight of the latest step in an average of ``count``."""
        return max(1 / count, settings.FRESH if self._fresh <= settings.FRESH_STEPS else settings.NEW)
