"""Typical acceptance on known distributions: what it accepts, which path wins, and that nobody gets it unasked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from slipstream.drafters.accept import Typical, accept, accept_rule
from slipstream.drafters.base import NO_DRAFT, Draft
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.errors import UsageError
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.sampling.top_k import Doubles, Ids
from slipstream.models.types import ROOT, Evaluation, Floats, History, Token, TokenTree

PROMPT = History([1, 2])
PAPERS_EPSILON = 0.09


@dataclass
class Told:
    """A sampler whose distributions are the rows themselves, and whose draws are told; it notes what it is asked."""

    drawn: Token = 0
    picked: list[tuple[Token, ...]] = field(default_factory=list)
    spread: list[tuple[Token, ...]] = field(default_factory=list)

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        self.picked.append(tuple(ahead))
        return self.drawn

    def distribution(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> tuple[Ids, Doubles]:
        self.spread.append(tuple(ahead))
        row = logits.astype(np.float64)
        ids = np.argsort(-row, kind="stable")[: np.count_nonzero(row)]
        return ids, row[ids]


def never(tokens: Sequence[Token]) -> bool:
    return False


def rows(tree: TokenTree, after: dict[tuple[Token, ...], list[float]]) -> Evaluation:
    """The rows of a tree: per text, the probabilities of the tokens 0, 1, …; the last token where none are given."""
    texts: list[tuple[Token, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        texts.append((*texts[parent + 1], token))
    size = len(next(iter(after.values())))
    sure = [0.0] * (size - 1) + [1.0]
    return Evaluation(np.array([after.get(text, sure) for text in texts], np.float32))


def one(probs: list[float], token: Token, epsilon: float = PAPERS_EPSILON) -> bool:
    """Whether a lone drafted token is accepted by a target with these probabilities."""
    draft = chain_draft((token,), (0.5,), "test")
    step = Typical(epsilon)(draft, rows(draft.tree, {(): probs}), Told(), PROMPT, never)
    return bool(step.path)


@pytest.mark.parametrize("epsilon", [0.02, PAPERS_EPSILON, 0.25])
@pytest.mark.parametrize("seed", range(30))
def test_a_token_is_accepted_by_the_papers_threshold(seed: int, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(6, rng.choice([0.1, 0.5, 3.0])))
    entropy = -sum(p * math.log(p) for p in probs if p > 0)
    threshold = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
    for token, p in enumerate(probs):
        if abs(p - threshold) > 1e-6:
            assert one(probs.tolist(), token, epsilon) == (p > threshold), (token, p, threshold)


def test_a_sure_target_wants_its_own_token_and_a_hesitating_one_takes_less() -> None:
    assert math.sqrt(PAPERS_EPSILON) == pytest.approx(0.3)
    sure = [0.95, 0.05, 0, 0]
    assert one(sure, 0) and not one(sure, 1)  # 0.05 < min(0.09, 0.3 * exp(-0.2))
    flat = [0.05] * 20
    assert one(flat, 7)  # 0.05 > 0.3 * exp(-ln 20) = 0.015
    assert not one([0.5, 0.5, 0, 0], 2)  # what cannot be drawn is never accepted


#        root
#     0        1        2?          ?: a probe
#   3   4    5
#            6
BUILDER = TreeBuilder()
A = BUILDER.add(ROOT, 0, 0.9, "test")
B = BUILDER.add(ROOT, 1, 0.1, "test")
BUILDER.add(ROOT, 2, 0.9, "test", probe=True)
BUILDER.add(A, 3, 0.9, "test")
BUILDER.add(A, 4, 0.1, "test")
BUILDER.add(BUILDER.add(B, 5, 0.1, "test"), 6, 0.1, "test")
DRAFT = BUILDER.build()
HALVES = {
    (): [0.35, 0.3, 0.35, 0, 0, 0, 0, 0],
    (0,): [0, 0, 0, 0.4, 0.6, 0, 0, 0],
    (1,): [0, 0, 0, 0, 0, 0.9, 0, 0.1],
    (1, 5): [0, 0, 0, 0, 0, 0, 0.9, 0.1],
}


def path_of(after: dict[tuple[Token, ...], list[float]], draft: Draft = DRAFT) -> tuple[Token, ...]:
    sampler = Told(drawn=7)
    step = Typical(PAPERS_EPSILON)(draft, rows(draft.tree, after), sampler, PROMPT, never)
    words = tuple(draft.tree.tokens[node] for node in step.path)
    assert all(draft.tree.parents[node] == before for before, node in zip((ROOT, *step.path), step.path, strict=False))
    assert step.tokens == (*words, 7)
    assert sampler.picked == [words]  # one draw, of the token after the path
    return words


def test_the_longest_path_wins_then_the_most_probable_one() -> None:
    assert path_of(HALVES) == (1, 5, 6)
    assert path_of(HALVES | {(1, 5): [0, 0, 0, 0, 0, 0, 0.0, 1]}) == (1, 5)  # 0.27 against 0.21 and 0.14
    assert path_of(HALVES | {(1,): [0, 0, 0, 0, 0, 0.0, 0, 1]}) == (0, 4)  # the second child is the more probable
    assert path_of({(): [0.0, 0, 0, 0, 0, 0, 0, 1]}) == ()


def test_a_refused_node_hides_only_what_is_below_it() -> None:
    assert path_of(HALVES | {(): [0, 1.0, 0, 0, 0, 0, 0, 0]}) == (1, 5, 6)
    first = HALVES | {(0,): [0, 0, 0, 0.0, 1, 0, 0, 0], (1,): [0, 0, 0, 0, 0, 0.0, 0, 1]}
    assert path_of(first) == (0, 4)  # 3, the better guess, is refused


def test_of_equal_paths_the_first_wins() -> None:
    assert path_of({(): [0.5, 0.5, 0, 0, 0, 0, 0, 0]}) == (0,)


def test_a_path_is_as_probable_as_all_its_tokens_together() -> None:
    two = {(): [0.5, 0.3, 0, 0, 0, 0, 0, 0.2], (0,): [0, 0, 0.5, 0.5, 0, 0, 0, 0], (1,): [0, 0, 0, 0, 0, 0.8, 0, 0.2]}
    assert path_of(two | {(1, 5): [0.0, 0, 0, 0, 0, 0, 0, 1]}) == (0, 3)  # 0.25 against 0.24


def test_probes_are_never_accepted_and_rows_that_cannot_matter_are_not_looked_at() -> None:
    sampler = Told(drawn=7)
    only_probe: dict[tuple[Token, ...], list[float]] = {(): [0, 0, 1.0, 0, 0, 0, 0, 0]}
    step = Typical(PAPERS_EPSILON)(DRAFT, rows(DRAFT.tree, only_probe), sampler, PROMPT, never)
    assert (step.path, step.tokens) == ((), (7,))
    assert sampler.spread == [()]


def test_without_a_draft_the_token_is_the_targets_own() -> None:
    sampler = Told(drawn=3)
    step = Typical(PAPERS_EPSILON)(NO_DRAFT, rows(NO_DRAFT.tree, {(): [1.0, 0, 0, 0]}), sampler, PROMPT, never)
    assert (step.path, step.tokens, step.ended, sampler.spread) == ((), (3,), False, [])


@pytest.mark.parametrize("right", [0, 1, 2])
def test_the_last_token_is_drawn_from_the_row_after_the_path(right: int) -> None:
    draft = chain_draft([3, 5][:right] + [9, 9][right:], (0.5, 0.5), "test")
    logits = np.zeros((3, 12), np.float32)
    logits[np.arange(3), [3, 5, 7]] = 9.0
    step = Typical(PAPERS_EPSILON)(draft, Evaluation(logits), Sampler(0.0), PROMPT, never)
    assert step.path == tuple(range(right)) and step.tokens == (3, 5, 7)[: right + 1]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_the_reply_can_end_on_any_token(length: int) -> None:
    def over(tokens: Sequence[Token]) -> bool:
        return len(tokens) == length

    step = Typical(PAPERS_EPSILON)(DRAFT, rows(DRAFT.tree, HALVES), Told(drawn=7), PROMPT, over)
    assert step.tokens == (1, 5, 6, 7)[:length] and len(step.path) == length - 1 and step.ended


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5])
def test_it_accepts_more_than_the_exact_rule_and_other_texts_come_of_it(temperature: float) -> None:
    rng = np.random.default_rng(5)
    exact = typical = 0
    texts = set()
    for seed in range(300):
        logits = (rng.normal(size=(3, 12)) * 2).astype(np.float32)
        sampler = Sampler(temperature, seed=seed)
        draft = chain_draft([int(row.argmax()) for row in logits[:2]], (0.5, 0.5), "test")
        steps = [rule(draft, Evaluation(logits), sampler, PROMPT, never) for rule in (accept, Typical(PAPERS_EPSILON))]
        exact += len(steps[0].path)
        typical += len(steps[1].path)
        assert len(steps[1].path) == 2  # the best token always passes
        texts.add(steps[0].tokens == steps[1].tokens)
    assert typical > exact + 30
    assert texts == {True, False}


def test_the_exact_rule_is_what_one_gets_unasked() -> None:
    assert accept_rule(None, 0.0) is accept and accept_rule(None, 0.8) is accept
    assert accept_rule(0.2, 0.8) == Typical(0.2)


@pytest.mark.parametrize("epsilon", [0.0, -0.1, 1.5, math.nan, math.inf])
def test_a_threshold_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(UsageError, match="must be above 0 and at most 1"):
        accept_rule(epsilon, 0.8)


def test_temperature_0_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="nothing at temperature 0") as refused:
        accept_rule(PAPERS_EPSILON, 0.0)
    assert "--typical" in refused.value.hint
