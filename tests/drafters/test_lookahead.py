"""The pool of n-grams against a plain list, and the window against its definition."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drafters.replies import always, steps_of, text_of
from tests.models.fake_target import FakeTarget

from slipstream.drafters.base import NO_DRAFT, Drafter, Plain, ShouldExtend, Step
from slipstream.drafters.lookahead import Lookahead, NGramPool
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Abilities, Evaluation, History, Token, TokenTree

ABILITIES = Abilities(n_vocab=64, n_ctx=4096, n_embd=8, n_layer=2, max_rows=64, max_leaves=16)
NO_ROWS = Evaluation(np.zeros((1, 1), np.float32))
GREEDY = Sampler(temperature=0)


def never(path: float, depth: int) -> bool:
    return False


def dear(path: float, depth: int) -> bool:
    return path > 0.3


def heard(drafter: Drafter, history: History, tokens: list[Token]) -> None:
    history.tokens.extend(tokens)
    drafter.observe(history, Step(NO_DRAFT, (), tuple(tokens), NO_ROWS))


@pytest.mark.parametrize("seed", range(10))
def test_the_pool_is_a_least_recently_used_list_for_each_first_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool, plain = NGramPool(per_token=3, first_tokens=4), dict[int, list[tuple[int, ...]]]()
    for first, *rest in rng.integers(0, 6, (300, 3)).tolist():
        pool.add(first, tuple(rest), guessed=False)
        grams = plain.pop(first, [])
        plain[first] = ([gram for gram in grams if gram != tuple(rest)] + [tuple(rest)])[-3:]
        if len(plain) > 4:
            plain.pop(next(iter(plain)))
        for token in range(6):
            assert [gram.tokens for gram in pool.after(token)] == plain.get(token, [])[::-1]
        assert len(pool) == sum(map(len, plain.values())) <= 12


def test_an_ngram_is_guessed_until_the_text_holds_it() -> None:
    pool = NGramPool(2)
    pool.add(1, (2, 3), guessed=True)
    assert pool.after(1)[0].guessed
    pool.add(1, (2, 3), guessed=False)
    pool.add(1, (2, 3), guessed=True)
    assert len(pool) == 1 and not pool.after(1)[0].guessed


@pytest.mark.parametrize(("columns", "length"), [(1, 3), (5, 4), (7, 5)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_window_and_its_ngrams_are_those_of_the_definition(columns: int, length: int, temperature: float) -> None:
    """Level j of column i sees level 0 up to i and its column's lower levels, and the best token above is the next."""
    drafter = Lookahead(ABILITIES, columns, length, ngrams=4)
    target, other = FakeTarget(), FakeTarget()
    levels: list[list[Token]] = []
    for step, history in steps_of(
        drafter, target, Sampler(temperature=temperature, seed=5), should_extend=always, size=60
    ):
        before = history.tokens[: -len(step.tokens)]
        tree = step.draft.tree
        probes = [tree.tokens[node] for node in sorted(tree.probes)]
        if not levels:
            levels = [[-1, *probes]]  # level 0 is drawn from the prompt
            assert set(probes) <= set(before)
        paths = [[*levels[0][1 : i + 1], *(level[i] for level in levels[1:])] for i in range(columns)]
        assert probes == [token for i, path in enumerate(paths) for token in path[max(0, i - 1) :]]
        rows = [other.evaluate(before[-1], TokenTree.chain(path)).logits[-1] for path in paths if reset(other, before)]
        top = [int(row.argmax()) for row in rows]
        if len(levels) == length - 1:
            levels[0][0] = before[-1]
            for gram in zip(*levels, top, strict=True):
                drafted = [each.tokens for each in drafter.pool.after(gram[0])]
                assert gram[1:] in drafted or len(drafted) == 4
            levels.pop(0)
        levels.append(top)


def reset(target: FakeTarget, history: list[Token]) -> bool:
    target.rewind(0)
    target.prefill(history[:-1])
    return True


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_with_the_window_the_text_is_the_same_and_probes_are_never_accepted(temperature: float) -> None:
    sampler = Sampler(temperature=temperature, seed=3)
    plain = text_of(Plain(), FakeTarget(), sampler)
    drafter = Lookahead(ABILITIES, columns=7, length=5, ngrams=7)
    text: list[Token] = []
    for step, _ in steps_of(drafter, FakeTarget(), sampler, always):
        tree = step.draft.tree
        text += step.tokens
        assert len(tree.probes) in (6, 13, 20, 27)
        assert not tree.probes & set(step.path)
        assert tree.leaves <= 14 and 1 + len(tree) <= 64
        assert len(tree) == len(step.draft.probs) and set(step.draft.sources) == {"lookahead"}
        assert all((prob == 0) == (node in tree.probes) for node, prob in enumerate(step.draft.probs))
    assert text == plain


@pytest.mark.parametrize("rows", [4, 9, 30])
def test_trees_stay_within_the_rows_and_the_context(rows: int) -> None:
    small = Abilities(n_vocab=24, n_ctx=90, n_embd=8, n_layer=2, max_rows=rows, max_leaves=16)
    plain = text_of(Plain(), FakeTarget(n_vocab=24, n_ctx=90, order=1), GREEDY)
    assert len(plain) == 90 - 14
    text: list[Token] = []
    for step, _ in steps_of(Lookahead(small), FakeTarget(n_vocab=24, n_ctx=90, order=1), GREEDY, always):
        text += step.tokens
        assert 1 + len(step.draft.tree) <= rows
    assert text == plain


@pytest.mark.parametrize("should_extend", [None, dear])
def test_where_rows_are_dear_a_repeating_text_is_drafted_without_a_window(should_extend: ShouldExtend | None) -> None:
    steps = [
        step for step, _ in steps_of(Lookahead(ABILITIES), FakeTarget(order=1, n_vocab=24), Sampler(), should_extend)
    ]
    assert sum(len(step.tokens) for step in steps) / len(steps) > 1.2
    assert not any(step.draft.tree.probes for step in steps)


def test_the_windows_ngrams_are_accepted_where_the_text_has_taught_none() -> None:
    """The first words of a greedy text that is about to become a cycle: only the window can know them."""
    counts = []
    for should_extend in (dear, always):
        steps = list(steps_of(Lookahead(ABILITIES), FakeTarget(order=1, n_vocab=200), GREEDY, should_extend, size=24))
        counts.append(len(steps))
    assert counts[1] < counts[0]


def test_a_window_that_brings_nothing_rests_until_the_next_reply() -> None:
    drafter = Lookahead(ABILITIES)
    noise = Sampler(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    for _ in range(2):
        steps = [step for step, _ in steps_of(drafter, FakeTarget(), noise, lambda path, depth: path > 0.03)]
        ran = [bool(step.draft.tree.probes) for step in steps]
        count = sum(ran)
        assert 3 < count < 20 and ran == [True] * count + [False] * (len(ran) - count)


def test_nothing_is_drafted_that_is_not_worth_it_and_ngrams_share_their_first_nodes() -> None:
    drafter, history = Lookahead(ABILITIES), History([1, 2, 3, 4, 1])
    drafter.begin(history)
    assert drafter.draft(history, never, GREEDY) is NO_DRAFT
    draft = drafter.draft(history, lambda path, depth: path > 0.05 and depth < 3, GREEDY)
    assert draft.tree.tokens == (2, 3) and draft.probs == pytest.approx((0.5, 0.6))
    drafter, history = Lookahead(ABILITIES), History([1, 2, 3, 4, 1, 2, 3, 5, 1, 6, 7, 8, 1])
    drafter.begin(history)
    draft = drafter.draft(history, lambda path, depth: path > 0.04, GREEDY)
    assert draft.tree.tokens == (6, 7, 8, 2, 3, 5, 4) and draft.tree.parents == (ROOT, 0, 1, ROOT, 3, 4, 4)


def test_ngrams_are_measured_whether_or_not_they_were_drafted() -> None:
    drafter, history = Lookahead(ABILITIES), History([1, 2, 3, 4])
    drafter.begin(history)
    for _ in range(6):
        heard(drafter, history, [1])
        drafter.draft(history, never, GREEDY)
        heard(drafter, history, [2, 3, 4])
    heard(drafter, history, [1])
    right = drafter.draft(history, dear, GREEDY)
    assert right.tree.tokens == (2, 3, 4) and min(right.probs) > 0.8
    for _ in range(6):
        heard(drafter, history, [7])
        heard(drafter, history, [1])
    turned = drafter.draft(history, dear, GREEDY)
    assert turned.tree.tokens[0] == 7 and turned.probs[0] > 0.8
    assert all(prob < 0.4 for node, prob in enumerate(turned.probs) if turned.tree.tokens[node] == 2)


def test_no_ngram_spans_a_cut() -> None:
    drafter, history = Lookahead(ABILITIES), History([1, 2, 3, 4, 5, 6])
    drafter.begin(history)
    drafter.rewind(3)
    history.tokens[3:] = [7]
    drafter.begin(history)
    heard(drafter, history, [8, 9])
    known = {first: [gram.tokens for gram in drafter.pool.after(first)] for first in range(1, 7)}
    assert known == {
        1: [(2, 3, 7), (2, 3, 4)], 2: [(3, 7, 8), (3, 4, 5)], 3: [(7, 8, 9), (4, 5, 6)], 4: [], 5: [], 6: [],
    }  # fmt: skip
    drafter.close()
    assert len(drafter.pool) == 0


def test_a_target_of_chains_gets_the_likeliest_ngram_or_the_first_column() -> None:
    drafter, history = Lookahead(replace(ABILITIES, max_leaves=1)), History([1, 2, 3, 4, 1, 2, 3, 5, 1])
    drafter.begin(history)
    tree = drafter.draft(history, always, GREEDY).tree
    assert tree.leaves == 1 and tree.tokens[:2] == (2, 3) and not tree.probes
    history = History([1, 2, 3, 4, 9])  # nothing is known to follow
    drafter.begin(history)
    target = FakeTarget(n_vocab=24, max_leaves=1)
    steps = [step for step, _ in steps_of(drafter, target, GREEDY, always)]
    assert all(step.draft.tree.leaves == 1 for step in steps)
    assert any(step.draft.tree.probes for step in steps) and any(step.draft.tree.drafted for step in steps)
