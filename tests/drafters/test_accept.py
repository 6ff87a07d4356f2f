"""What a step looks like, and that the text depends on the seed alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from slipstream.drafters.accept import accept
from slipstream.drafters.base import NO_DRAFT, Draft
from slipstream.drafters.tree import TreeBuilder, chain_draft
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Evaluation, Floats, History, Token, TokenTree


@dataclass
class Told:
    """A sampler that draws what it is told, and notes which rows it saw."""

    tokens: Sequence[Token]
    rows: list[int] = field(default_factory=list)

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        self.rows.append(int(logits[0]))
        return self.tokens[len(ahead)]


def numbered(tree: TokenTree) -> Evaluation:
    return Evaluation(np.arange(len(tree) + 1, dtype=np.float32)[:, None])


def never(tokens: Sequence[Token]) -> bool:
    return False


#      root
#    5      6     (5)?        ?: probes
#  7   8     7     8?
#      9
TREE = TokenTree((5, 8, 9, 7, 6, 7, 5, 8), (ROOT, 0, 1, 0, ROOT, 4, ROOT, 6), frozenset((6, 7)))
DRAFT = Draft(TREE, (0.5,) * 8, ("test",) * 8)


@pytest.mark.parametrize(
    ("drawn", "path", "rows"),
    [
        pytest.param((4,), (), [0], id="nothing matches"),
        pytest.param((5, 4), (0,), [0, 1], id="recovered"),
        pytest.param((5, 8, 9, 3), (0, 1, 2), [0, 1, 2, 3], id="bonus after the first path"),
        pytest.param((5, 7, 3), (0, 3), [0, 1, 4], id="second child"),
        pytest.param((6, 7, 2), (4, 5), [0, 5, 6], id="second branch"),
        pytest.param((6, 8), (4,), [0, 5], id="a cousin does not count"),
    ],
)
def test_walk(drawn: tuple[int, ...], path: tuple[int, ...], rows: list[int]) -> None:
    sampler = Told(drawn)
    step = accept(DRAFT, numbered(TREE), sampler, History([1, 2]), never)
    assert (step.tokens, step.path, step.ended) == (drawn, path, False)
    assert sampler.rows == rows  # only visited rows are sampled
    assert step.draft is DRAFT


def test_probes_are_never_entered() -> None:
    tree = TokenTree((5, 6), (ROOT, 0), frozenset((0, 1)))
    sampler = Told((5, 6))
    step = accept(Draft(tree, (0.5, 0.5), ("test", "test")), numbered(tree), sampler, History([]), never)
    assert (step.tokens, step.path, sampler.rows) == ((5,), (), [0])


def test_plain_decoding_emits_one_token() -> None:
    step = accept(NO_DRAFT, numbered(NO_DRAFT.tree), Told((3,)), History([1]), never)
    assert (step.tokens, step.path) == ((3,), ())


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_the_reply_can_end_on_any_token(length: int) -> None:
    asked: list[tuple[Token, ...]] = []

    def over(tokens: Sequence[Token]) -> bool:
        asked.append(tuple(tokens))
        return len(tokens) == length

    sampler = Told((5, 8, 9, 3))
    step = accept(DRAFT, numbered(TREE), sampler, History([]), over)
    assert step.tokens == (5, 8, 9, 3)[:length] and step.path == (0, 1, 2)[: length - 1] and step.ended
    assert asked == [(5, 8, 9, 3)[:n] for n in range(1, length + 1)]
    assert len(sampler.rows) == length


def row_after(context: Sequence[Token]) -> Floats:
    rng = np.random.default_rng([17, *context])
    return (rng.normal(size=12) * 2).astype(np.float32)


def right_or_wrong(rng: np.random.Generator, text: Sequence[Token]) -> Draft:
    """A tree around the text to come, with wrong siblings, wrong turns and probes."""
    builder = TreeBuilder()
    parent = ROOT
    for token in text[: int(rng.integers(5))]:
        for _ in range(rng.integers(0, 4)):
            builder.add(parent, int(rng.integers(12)), float(rng.random()), "test", probe=bool(rng.random() < 0.3))
        if rng.random() < 0.5:
            break
        parent = builder.add(parent, token, float(rng.random()), "test")
    return builder.build()


@pytest.mark.parametrize("temperature", [0, 0.2, 0.8, 1.5])
def test_the_text_is_a_function_of_the_seed_alone(temperature: float) -> None:
    rng = np.random.default_rng(int(temperature * 10))
    accepted = rejected = 0
    for seed in range(20):
        sampler = Sampler(temperature, repetition_penalty=1.2, presence_penalty=0.1, penalty_window=6, seed=seed)
        plain = [1, 2]
        while len(plain) < 26:
            plain.append(sampler.pick(row_after(plain), History(plain)))
        text = [1, 2]
        while len(text) < 20:
            draft = right_or_wrong(rng, plain[len(text) :])
            texts = [text]
            for token, parent in zip(draft.tree.tokens, draft.tree.parents, strict=True):
                texts.append([*texts[parent + 1], token])
            step = accept(draft, Evaluation(np.stack([row_after(t) for t in texts])), sampler, History(text), never)
            accepted += len(step.path)
            rejected += len(step.path) < draft.tree.depth
            text = [*text, *step.tokens]
        assert text == plain[: len(text)]
    assert accepted > 50
    assert rejected > 50


def test_a_chain_draft_walks_to_its_end() -> None:
    draft = chain_draft((5, 6), (0.9, 0.9), "lookup")
    step = accept(draft, numbered(draft.tree), Told((5, 6, 7)), History([]), never)
    assert (step.tokens, step.path) == ((5, 6, 7), (0, 1))
