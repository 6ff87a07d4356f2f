"""The one interface of every drafting method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, Evaluation, Floats, History, Token, TokenTree

ShouldExtend = Callable[[float, int], bool]
"""``should_extend(path_probability, depth)``: whether one more node pays for its row in the target's pass.

A drafter calls it before it adds a node, and leaves the node out where it returns False. The path's probability is the
product of the node's own and those of all nodes above it; the depth counts from 1. If ``should_extend(1.0, 1)`` is
False, the drafter must not draft in this step.

The autopilot decides by the cost of a row and by the calibration of the drafter's probabilities. A drafter that is
chosen by name gets ``FixedBudget``: it refuses paths of a probability below 0.5 (down to
0.1 where nodes take little time), depths above 8, every draft in one step of 64, and most drafts after many wrong ones
in a row.

A probability should be the share of such tokens that is accepted. Measure it in ``observe``, with
``calibration.Ratio`` or ``calibration.ProbabilityCalibration``, in steps without a draft, too: a drafter that measures
its own drafts alone learns nothing after it has once stopped drafting. Begin with a prior at which whole paths reach
0.5: 0.5 for one token, 0.8 a token for three.
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens that may come next."""

    tree: TokenTree = EMPTY_TREE  # the guessed tokens; an empty tree means: decode plainly
    probs: tuple[float, ...] = ()  # per node, the drafter's probability of it given its parent, 0 to 1
    sources: tuple[str, ...] = ()  # per node, the name of the method that drafted it

    @property
    def own_depth(self) -> int:
        """Its depth without what another drafter copied behind its first path; 0 if it is empty."""
        path = self.sources[: self.tree.first_path]
        copied = len(path) - path.count(path[0]) if path else 0
        return self.tree.depth - copied if path else 0


NO_DRAFT: Final = Draft()


@dataclass(slots=True)
class Timings:
    """Milliseconds that the phases of one step took."""

    draft: float = 0.0
    evaluate: float = 0.0
    accept: float = 0.0
    commit: float = 0.0
    processor: float = 0.0  # processor time of all threads during ``evaluate``; 0 if not measured


@dataclass(slots=True)
class Step:
    """One turn of the loop."""

    draft: Draft  # the evaluated draft
    path: tuple[int, ...]  # accepted nodes, root to leaf
    # the emitted tokens: the path's and one more, which is *recovered* where the draft was wrong, a *bonus* after a
    # path accepted to its leaf, and plain where nothing was drafted
    tokens: tuple[Token, ...]
    evaluation: Evaluation  # the target's rows; valid until the target's next call
    ended: bool = False  # whether the reply ends with the last token; depths below it were not observed
    timings: Timings = field(default_factory=Timings)  # filled by the loop


@dataclass(frozen=True, slots=True)
class Needs:
    """A drafter's requirements of the target."""

    hidden: frozenset[int] = frozenset()  # hidden points that evaluations must carry
    leaves: int = 1  # most leaves of its trees; 1 for chains
    # least rows of a pass, where the target pads passes at all (see ``Abilities.widths``); 0: as of its latest drafts
    rows: int = 0


_NO_NEEDS: Final = Needs()


class Drafter(ABC):
    """A drafting method.

    A drafter owns its state (pool, cache, heads). The engine calls ``begin`` with each new prompt, then ``draft`` and
    ``observe`` once a step.
    """

    name: str

    # properties, so that a subclass may have either a plain attribute or a property of its own
    @property
    def needs(self) -> Needs:
        return _NO_NEEDS

    @property
    def failed(self) -> str:
        """Why it was disabled, as the end of a sentence; empty while it drafts."""
        return ""

    def begin(self, history: History) -> None:
        """Starts a reply; ``history`` is the whole prompt.

        One object drafts for all replies of a model: most of the prompt may be known from the reply before, and what
        should not outlive a reply is reset here.
        """

    def known(self, history: History) -> int:
        """How many tokens of the prompt, from its start, need not be read again for it; called after ``begin``.

        A prompt that was read for another drafter, or for none, has left it no hidden states.
        """
        return len(history.tokens)

    def on_prefill(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Takes the hidden states of prompt tokens that the target has just read."""

    @abstractmethod
    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        """Guesses the tokens after ``history``.

        Args:
            should_extend: Whether one more node pays; see ``ShouldExtend``.
            sampler: The target's sampler, for drafters that draw with its keyed noise.
        """

    def continued(self, history: History, draft: Draft, should_extend: ShouldExtend) -> Draft:
        """Lengthens another drafter's draft, if it can tell what follows its end."""
        return draft

    def observe(self, history: History, step: Step) -> None:
        """Learns from a step, whichever drafter's draft it evaluated; ``history`` already ends with its tokens."""

    def reading_ms(self, history: History) -> float:
        """Milliseconds of reading, over the next drafts, before it can draft after ``history``; 0 for most."""
        return 0.0

    def rewind(self, length: int) -> None:
        """Drops every token from index ``length`` of the history on."""

    def reject(self, draft: Draft, why: Exception) -> None:
        """Called when the target could not evaluate a draft and decoded the step plainly instead."""

    def close(self) -> None:
        """Frees its resources."""


class Plain(Drafter):
    """Guesses nothing, so every step is one plain decode."""

    name = "none"
    needs = Needs(leaves=0)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        return NO_DRAFT
