"""Where two texts part: whether a tiny change of the target's logits explains it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from slipstream.app.bench.turns import Turn
from slipstream.app.engine.loop import generate
from slipstream.app.engine.rules import Rules
from slipstream.app.engine.session import Session
from slipstream.drafters.none import Plain
from slipstream.models.noise import gumbel
from slipstream.models.sampling import Sampler
from slipstream.models.types import Floats, History, Token, shared_prefix


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a reply is not plain decoding's.

    Attributes:
        index: Of the token in the reply, from 0.
        plain: What plain decoding writes there; None where its reply has ended.
        drafted: What the other reply has there; None where it has ended.
        again: What plain decoding writes there when it is run once more; other than ``plain`` where not even it repeats
            itself.
        gap: By how much the best noisy score leads the second, in logits; None where only one token could be drawn.
        near_tie: Whether logits that moved by no more than the tolerance give the one token, and others the other.
    """

    index: int
    plain: Token | None
    drafted: Token | None
    again: Token | None
    gap: float | None
    near_tie: bool


def weigh(
    session: Session, turn: Turn, plain: Sequence[Token], drafted: Sequence[Token], tolerance: float
) -> Difference:
    """Runs the target plainly up to the first difference, and looks at its scores there.

    Args:
        session: The model.
        turn: What was replied to.
        plain: Plain decoding's reply.
        drafted: The other, which differs.
        tolerance: How far floating point may move a logit.
    """
    index = shared_prefix(plain, drafted)
    ours, theirs = _at(plain, index), _at(drafted, index)
    if ours is None or theirs is None:  # the same tokens, but one reply went on: no score explains that
        return Difference(index, ours, theirs, ours, None, False)
    settings = asdict(turn.sampling)
    settings.pop("typical")
    sampler = Sampler(**settings)
    history, row, again = _row_at(session, turn, index, sampler, plain)
    gap = noisy_gap(sampler, row, history)
    return Difference(index, ours, theirs, again, gap, near_tie(sampler, row, history, (ours, theirs), tolerance))


def noisy_gap(sampler: Sampler, row: Floats, history: History) -> float | None:
    """By how much the best noisy score leads the second best, in logits; None where only one token can be drawn.

    Args:
        sampler: How tokens are drawn.
        row: [n_vocab] logits.
        history: The tokens before.
    """
    if sampler.temperature == 0:
        _, shares = sampler.rank(row, history, (), 2)
        return math.log(shares[0] / shares[1]) if len(shares) == 2 and shares[1] > 0 else None
    ids, probs = sampler.distribution(row, history)
    if len(ids) < 2:
        return None
    scores = np.sort(np.log(probs) + gumbel(sampler.seed, history.position, ids))
    return float(scores[-1] - scores[-2]) * sampler.temperature


def near_tie(sampler: Sampler, row: Floats, history: History, tokens: Sequence[Token], tolerance: float) -> bool:
    """Whether for each of the tokens there are logits within ``tolerance`` of the row's that give it.

    Beside the row itself, two such rows are tried: the token's logit raised against all others, which also carries it
    over the limit of a truncation, and the winner's lowered while the token's is raised, which also drops the winner
    below it.
    """
    winner = sampler.pick(row, history)
    for token in tokens:
        raised, swapped = row.copy(), row.copy()
        raised[token] += np.float32(2 * tolerance)  # as if it had risen by one tolerance and all others sunk by one
        swapped[token] += np.float32(tolerance)
        swapped[winner] -= np.float32(tolerance)
        if token != winner and token not in (sampler.pick(raised, history), sampler.pick(swapped, history)):
            return False
    return True


def _row_at(
    session: Session, turn: Turn, index: int, sampler: Sampler, plain: Sequence[Token]
) -> tuple[History, Floats, Token]:
    """Decodes the reply plainly again: the tokens before its ``index``-th, the row it is drawn from, and the draw.

    The tokens before are those of the first run, whatever is drawn now.
    """
    target, prompt = session.target, session.prompts.build(turn.messages, session.target.abilities.n_ctx)
    history = History(list(prompt.tokens), prompt.trimmed)
    target.request(frozenset())
    target.prefill(history.tokens[:-1])
    rules = Rules(frozenset(), target.abilities.n_ctx - len(history.tokens), 0, (), lambda _token: b"")
    steps = generate(target, Plain(), sampler, history, lambda _probability, _depth: False, rules, lambda: False)
    for at, step in enumerate(steps):
        if at == index:
            row = step.evaluation.logits[0].copy()
            before = History(history.tokens[:-1], prompt.trimmed)
            return before, row, step.tokens[0]
        history.tokens[-1] = plain[at]
    raise AssertionError("the reply fitted the context when it was written")


def _at(tokens: Sequence[Token], index: int) -> Token | None:
    return tokens[index] if index < len(tokens) else None
