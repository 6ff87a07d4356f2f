"""The one accept rule: draw the target's own token at every node, go down where the draft agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slipstream.drafters.base import Draft, Step
from slipstream.models.types import ROOT, Evaluation, Floats, History, Token


class Picker(Protocol):
    """What ``accept`` needs of a sampler."""

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        """Draws the token after ``history`` and ``ahead`` from a row of logits [n_vocab]."""


def accept(
    draft: Draft,
    evaluation: Evaluation,
    sampler: Picker,
    history: History,
    over: Callable[[Sequence[Token]], bool],
) -> Step:
    """Walks the tree with the target's own samples.

    Every emitted token is a draw of the target, one for each node that is visited, whether or not a child carries it:
    the text has the target's distribution whatever was drafted. Rows that the walk does not visit are not sampled, and
    probes are never entered.

    Args:
        draft: The guess.
        evaluation: The target's rows for the guess.
        sampler: Draws the target's tokens.
        history: The tokens before this step.
        over: Whether the reply ends with the last of the step's tokens so far.

    Returns:
        The step. Where ``over`` said so it has ended: its last token is not on the path, even if it was drafted.
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
