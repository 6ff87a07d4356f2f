"""Exactness of the accept rule, by enumeration of every branch; eight wrong rules, each caught by the same check."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from slipstream.drafters.accept import accept
from slipstream.drafters.base import Draft
from slipstream.drafters.tree import TreeBuilder
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Evaluation, Floats, History, Token, TokenTree

Vector = NDArray[np.float64]
Text = tuple[Token, ...]
TEMPERATURES = (0.0, 0.2, 0.8, 1.5)


class Chance:
    """Plays one branch: the choices of ``script``, then the first possible one, noting the others as ``open``."""

    def __init__(self, script: list[int]) -> None:
        self.made, self.script, self.probability = list[int](), script, 1.0
        self.open: list[list[int]] = []

    def choose(self, probs: Sequence[float] | Vector) -> int:
        if len(self.made) < len(self.script):
            choice = self.script[len(self.made)]
        else:
            choice, *others = (i for i, p in enumerate(probs) if p > 0)
            self.open += [[*self.made, other] for other in others]
        self.made.append(choice)
        self.probability *= probs[choice]
        return choice


def every_branch(play: Callable[[Chance], Text]) -> dict[Text, float]:
    texts: dict[Text, float] = {}
    scripts: list[list[int]] = [[]]
    while scripts:
        chance = Chance(scripts.pop())
        text = play(chance)
        texts[text] = texts.get(text, 0.0) + chance.probability
        scripts += chance.open
    return texts


@dataclass
class Case:
    """A random target over a tiny vocabulary, a random drafter, and sampler settings."""

    seed: int
    largest: tuple[int, int] = (5, 3)  # tokens of the vocabulary, depth of the tree
    vectors: dict[object, Vector] = field(default_factory=dict)
    steps: dict[Text, tuple[Draft, Evaluation]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.n_vocab = int(rng.integers(2, self.largest[0] + 1))
        self.depth = int(rng.integers(1, self.largest[1] + 1))
        self.length = self.depth + 1 if self.n_vocab > 3 else self.depth + 2
        self.chain = bool(rng.random() < 0.3)
        self.sampler = Sampler(
            temperature=TEMPERATURES[self.seed % 4], top_k=int(rng.choice([0, 0, 2, 3])),
            top_p=float(rng.choice([1.0, 1.0, 0.9, 0.6])), min_p=float(rng.choice([0.0, 0.0, 0.1])),
            repetition_penalty=float(rng.choice([1.0, 1.0, 1.3])), penalty_window=4,
        )  # fmt: skip
        self.prompt = [int(t) for t in rng.integers(0, self.n_vocab, 3)]

    def row(self, context: Sequence[Token], of: int = 0) -> Floats:
        """Logits of the target (or of the draft model: ``of`` = 1) after a context."""
        rng = np.random.default_rng([self.seed, of, *context])
        return (rng.normal(size=self.n_vocab) * 1.5).astype(np.float32)

    def probs(
        self, logits: Floats, history: History, ahead: Sequence[Token] = (), sampler: Sampler | None = None
    ) -> Vector:
        sampler = sampler or self.sampler
        key = (logits.tobytes(), tuple(history.tokens), tuple(ahead), sampler.temperature)
        if key not in self.vectors:
            ids, kept = sampler.distribution(logits, history, ahead)
            self.vectors[key] = np.zeros(self.n_vocab)
            self.vectors[key][ids] = kept
        return self.vectors[key]

    def next(self, context: list[Token], of: int = 0, sampler: Sampler | None = None) -> Vector:
        """The target's distribution after a context, or the draft model's (``of`` = 1)."""
        key = (tuple(context), of, sampler)
        if key not in self.vectors:
            self.vectors[key] = self.probs(self.row(context, of), History(context), (), sampler)
        return self.vectors[key]

    def step(self, context: list[Token]) -> tuple[Draft, Evaluation]:
        """What is drafted after a context, and the target's rows for it."""
        key = tuple(context)
        if key not in self.steps:
            draft = self.draft(context)
            self.steps[key] = draft, self.evaluate(draft.tree, context)
        return self.steps[key]

    def draft(self, context: Sequence[Token]) -> Draft:
        """A chain, or a tree of up to 3 children a node, with duplicates to merge, and probes."""
        rng = np.random.default_rng([self.seed, 2, *context])
        builder = TreeBuilder()
        ends = [(ROOT, 0)]
        while ends:
            parent, depth = ends.pop()
            for _ in range(0 if depth == self.depth else 1 if self.chain else rng.integers(0, 5)):
                probe = not self.chain and bool(rng.random() < 0.15)
                node = builder.add(parent, int(rng.integers(self.n_vocab)), float(rng.random()), "test", probe=probe)
                if not any(node == other for other, _ in ends):
                    ends.append((node, depth + 1))
                if len(builder) > 12:
                    return builder.build()
        return builder.build()

    def evaluate(self, tree: TokenTree, context: Sequence[Token]) -> Evaluation:
        texts = [list(context)]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            texts.append([*texts[parent + 1], token])
        return Evaluation(np.stack([self.row(text) for text in texts]))


@dataclass
class Enumerated:
    case: Case
    chance: Chance

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        return self.chance.choose(self.case.probs(logits, history, ahead))


Rule = Callable[[Case, Chance, list[Token], int], Sequence[Token]]
"""Emits the tokens of one step after a context, and at most so many."""


def worst_error(case: Case, rule: Rule) -> float:
    """The largest difference between the rule's texts and ancestral sampling from the target, over all texts."""

    def play(chance: Chance) -> Text:
        text: list[Token] = []
        while len(text) < case.length:
            left = case.length - len(text)
            text += rule(case, chance, case.prompt + text, left)[:left]
        return tuple(text)

    def ancestral(chance: Chance) -> Text:
        text: list[Token] = []
        while len(text) < case.length:
            text.append(chance.choose(case.next(case.prompt + text)))
        return tuple(text)

    texts, expected = every_branch(play), every_branch(ancestral)
    return max(abs(texts.get(text, 0.0) - expected.get(text, 0.0)) for text in texts.keys() | expected.keys())


def shipped(case: Case, chance: Chance, context: list[Token], left: int) -> Sequence[Token]:
    draft, evaluation = case.step(context)
    step = accept(draft, evaluation, Enumerated(case, chance), History(context), lambda tokens: len(tokens) >= left)
    assert len(step.tokens) == len(step.path) + 1 and step.ended == (len(step.tokens) == left)
    return step.tokens


@pytest.mark.parametrize("block", range(20))
def test_the_emitted_distribution_is_the_targets(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        assert worst_error(Case(seed), shipped) <= 1e-12, seed


def test_the_cases_are_rich_enough() -> None:
    cases = [Case(seed) for seed in range(500)]
    trees = [case.draft(case.prompt).tree for case in cases]
    assert {case.sampler.temperature for case in cases} == set(TEMPERATURES)
    assert sum(tree.leaves > 1 for tree in trees) > 150
    assert sum(bool(tree.probes) for tree in trees) > 100
    assert {tree.depth for tree in trees} >= {1, 2, 3}
    assert sum(case.chain for case in cases) > 100


def walk(wrong: str) -> Rule:
    """The walk of ``accept``, written again, with one mistake."""

    def rule(case: Case, chance: Chance, context: list[Token], left: int) -> list[Token]:
        draft, evaluation = case.step(context)
        tree, rows = draft.tree, evaluation.logits
        sampler, history = Enumerated(case, chance), History(context)
        node, tokens = ROOT, list[Token]()
        while len(tokens) < left:
            children = [i for i, p in enumerate(tree.parents) if p == node and i not in tree.probes]
            row = rows[tree.parents[node] + 1] if wrong == "row" and node != ROOT and not children else rows[node + 1]
            token = sampler.pick(row, history, tokens)
            child = next((i for i in children if tree.tokens[i] == token), None)
            if wrong == "siblings":  # each sibling draws for itself
                child = next((i for i in children if tree.tokens[i] == sampler.pick(row, history, tokens)), None)
                token = token if child is None else tree.tokens[child]
            if wrong == "mismatch" and child is None and children:
                token = sampler.pick(row, history, tokens)  # the draw that failed is lost
            tokens.append(token)
            if child is None:
                break
            node = child
        return tokens

    return rule


def rejection(wrong: str) -> Rule:
    """The rule of Leviathan (2022) and Chen (2023) on a sampled chain, right or with one mistake."""

    def rule(case: Case, chance: Chance, context: list[Token], left: int) -> list[Token]:
        drafted: list[Token] = []
        for _ in range(case.depth):
            drafted.append(chance.choose(case.next(context + drafted, 1)))
        for i, x in enumerate(drafted):
            here = context + drafted[:i]
            p, q = case.next(here), case.next(here, 1)
            if wrong == "temperature" and case.sampler.temperature > 0:
                q = case.next(here, 1, replace(case.sampler, temperature=1.0))
            ratio = p[x] / q[x]
            if wrong == "inverted":
                ratio = q[x] / p[x] if p[x] else math.inf
            if wrong == "threshold":
                ratio = float(p[x] > q[x])
            if chance.choose((min(1.0, ratio), max(0.0, 1.0 - ratio))) == 1:
                rest = p if wrong == "residual" else np.maximum(p - q, 0)
                rest = rest if rest.any() else p  # a wrong rule may reject where nothing is left
                return [*drafted[:i], chance.choose(rest / rest.sum())]
        return [*drafted, chance.choose(case.next(context + drafted))]

    return rule


def sibling_by_sibling(wrong: str) -> Rule:
    """EAGLE's rule on a tree: accept a child by its probability, else strike it out and try the next."""

    def rule(case: Case, chance: Chance, context: list[Token], left: int) -> list[Token]:
        tree = case.step(context)[0].tree
        node, tokens = ROOT, list[Token]()
        while True:
            p = case.next(context + tokens).copy()
            for child in (i for i, parent in enumerate(tree.parents) if parent == node and i not in tree.probes):
                x = tree.tokens[child]
                if chance.choose((p[x], 1.0 - p[x])) == 0:
                    break
                if wrong != "zeroing":
                    p[x] = 0.0
                if wrong != "renormalising":
                    p /= p.sum()
            else:
                if wrong == "renormalising":
                    p[-1] += 1.0 - p.sum()  # what a search in the unfinished cumulative sum falls off to
                return [*tokens, chance.choose(p)]
            node = child
            tokens.append(x)

    return rule


def small(seed: int) -> Case:
    """A case with few branches: these rules branch twice a token."""
    return Case(seed, (3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [walk(""), rejection(""), sibling_by_sibling("")])
def test_the_rules_that_the_mutants_come_from_are_exact(rule: Rule) -> None:
    assert all(worst_error(small(seed), rule) <= 1e-12 for seed in range(60))


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(walk("mismatch"), id="walk: resample at a mismatch"),
        pytest.param(walk("siblings"), id="walk: each sibling draws again"),
        pytest.param(walk("row"), id="walk: bonus from the wrong row"),
        pytest.param(rejection("residual"), id="rejection: resample from p, not from the residual"),
        pytest.param(rejection("inverted"), id="rejection: inverted ratio"),
        pytest.param(rejection("threshold"), id="rejection: accept iff p > q"),
        pytest.param(rejection("temperature"), id="rejection: temperature on one side"),
        pytest.param(sibling_by_sibling("renormalising"), id="siblings: no renormalising"),
        pytest.param(sibling_by_sibling("zeroing"), id="siblings: no zeroing"),
    ],
)
def test_every_wrong_rule_is_caught(rule: Rule) -> None:
    assert any(worst_error(small(seed), rule) > 1e-3 for seed in range(60))
