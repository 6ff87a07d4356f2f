"""The accept rule: draw the target's own token at every node, and descend where the draft agrees.

The other rule, typical acceptance, accepts more and changes the text; it is used only on request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np

from slipstream.drafters.base import Draft, Step
from slipstream.models.errors import UsageError
from slipstream.models.sampling.top_k import Doubles, Ids
from slipstream.models.types import ROOT, Evaluation, Floats, History, Token

Over = Callable[[Sequence[Token]], bool]  # takes the step's tokens so far; whether the reply ends with the last one


class Picker(Protocol):
    """The part of a sampler that ``accept`` uses."""

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        """Draws the token after ``history`` and ``ahead`` from a row of logits [n_vocab]."""


class Spreader(Picker, Protocol):
    """The part of a sampler that ``Typical`` uses."""

    def distribution(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> tuple[Ids, Doubles]:
        """The ids [n] that ``pick`` can draw, best first, and their probabilities [n]."""


AcceptRule = Callable[[Draft, Evaluation, Spreader, History, Over], Step]
"""Makes a step from the draft, the target's rows, the sampler, the tokens before the step, and ``over``."""


def accept(draft: Draft, evaluation: Evaluation, sampler: Picker, history: History, over: Over) -> Step:
    """Walks the tree with the target's own samples.

    Every emitted token is sampled from the target, one at each visited node, whether or not a child has that token. So
    the text has the target's distribution for any draft. Rows of nodes that are not visited are not sampled, and probes
    are never visited.

    Args:
        over: Whether the reply ends with the last of the step's tokens so far.

    Returns:
        The step; if ``over`` ended it, its last token is not on the path, even if it was drafted.
    """
    node, path = ROOT, list[int]()
    tokens: list[Token] = []
    while True:
        token = sampler.pick(evaluation.logits[node + 1], history, tokens)
        tokens.append(token)
        ended = over(tokens)
        child = None if ended else draft.tree.child(node, token)
        if child is None:
            return Step(draft, tuple(path), tuple(tokens), evaluation, ended)
        path.append(child)
        node = child


@dataclass(frozen=True, slots=True)
class Typical:
    """Medusa's typical acceptance: accepts tokens that the target finds likely enough, which changes the text.

    A drafted token x is accepted if p(x) > min(epsilon, alpha * exp(-H(p))). Here p is the distribution that the target
    samples from, H(p) is its entropy in nats, and alpha = sqrt(epsilon): a lower entropy raises the threshold. The step
    emits the longest path of accepted nodes (of equally long paths the most probable) and a token that the target
    samples after it. The target could have sampled each emitted token, but replies do not have its distribution, and
    the text depends on the drafter as well as the seed.

    Source: Medusa (Cai et al., 2024, arXiv 2401.10774; github.com/FasterDecoding/Medusa, ``medusa/model/utils.py``:
    ``evaluate_posterior``, which takes p before top-k and top-p).

    Raises:
        UsageError: If ``epsilon`` is out of its range.
    """

    epsilon: float  # the threshold, above 0 and at most 1; the paper's is 0.09, with alpha 0.3

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:  # also rejects NaN
            raise UsageError(
                f"the threshold of typical acceptance is {self.epsilon}; it must be above 0 and at most 1."
            )

    def __call__(self, draft: Draft, evaluation: Evaluation, sampler: Spreader, history: History, over: Over) -> Step:
        path = self._best_path(draft, evaluation, sampler, history)
        tokens: list[Token] = []
        for at, node in enumerate(path):
            tokens.append(draft.tree.tokens[node])
            if over(tokens):
                return Step(draft, path[:at], tuple(tokens), evaluation, True)
        last = path[-1] if path else ROOT
        tokens.append(sampler.pick(evaluation.logits[last + 1], history, tokens))
        return Step(draft, path, tuple(tokens), evaluation, over(tokens))

    def _best_path(self, draft: Draft, evaluation: Evaluation, sampler: Spreader, history: History) -> tuple[int, ...]:
        """The longest path of accepted nodes; ties go to the more probable path, then to the first."""
        tree = draft.tree
        paths: dict[int, tuple[int, ...]] = {ROOT: ()}  # path to each accepted node
        chances = {ROOT: 1.0}
        likely: dict[int, Mapping[Token, float]] = {}  # per node with a child: the tokens that may follow it
        best = ROOT
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            if parent not in paths or node in tree.probes:
                continue
            if parent not in likely:
                ahead = [tree.tokens[before] for before in paths[parent]]
                likely[parent] = self._likely(*sampler.distribution(evaluation.logits[parent + 1], history, ahead))
            chance = likely[parent].get(token)
            if chance is None:
                continue
            paths[node], chances[node] = (*paths[parent], node), chances[parent] * chance
            if (len(paths[node]), chances[node]) > (len(paths[best]), chances[best]):
                best = node
        return paths[best]

    def _likely(self, ids: Ids, probs: Doubles) -> dict[Token, float]:
        entropy = -float(probs @ np.log(np.maximum(probs, 1e-300)))
        count = int((probs > min(self.epsilon, sqrt(self.epsilon) * np.exp(-entropy))).sum())  # best first
        return dict(zip(ids[:count].tolist(), probs[:count].tolist(), strict=True))


def accept_rule(typical: float | None, temperature: float) -> AcceptRule:
    """Chooses the rule: the exact one unless typical acceptance is requested, which a temperature of 0 refuses."""
    if typical is None:
        return accept
    if temperature == 0:
        raise UsageError(
            "typical acceptance does nothing at temperature 0: only the best token is likely there.",
            "Leave --typical out, or choose a temperature above 0.",
        )
    return Typical(typical)
