"""The llama.cpp runtime on the bundled model: trees, rollback, cancel, hidden states, saved states."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from slipstream.models.errors import ContextFullError, SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.target import WIDTHS, ContextOptions, PrefillChunk
from slipstream.models.types import LAST_HIDDEN, Floats, TokenTree

Open = Callable[..., LlamaTarget]
STRICT = ContextOptions(n_ctx=1024, kv="q8_0", flash=True, same_text=True, max_leaves=8, threads=1)


def prompt_of(size: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(300, 4000), k=size)


def random_tree(rng: random.Random, nodes: int) -> TokenTree:
    tokens, parents, path = [], [], [-1]
    for node in range(nodes):
        while len(path) > 1 and rng.random() < 0.4:
            path.pop()
        parents.append(path[-1])
        tokens.append(rng.randrange(300, 4000))
        path.append(node)
    return TokenTree(tuple(tokens), tuple(parents))


def random_path(rng: random.Random, tree: TokenTree) -> list[int]:
    node, path = -1, []
    while children := [i for i, parent in enumerate(tree.parents) if parent == node]:
        if rng.random() < 0.15:
            break
        node = rng.choice(children)
        path.append(node)
    return path


def plain_rows(target: LlamaTarget, tokens: Sequence[int]) -> list[Floats]:
    rows = []
    for token in tokens:
        rows.append(target.evaluate(token).logits[0].copy())
        target.keep(())
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [40, 560])
@pytest.mark.parametrize("widths", [(), WIDTHS])
def test_trees_are_bit_equal_to_plain_decoding(open_target: Open, prefix: int, widths: tuple[int, ...]) -> None:
    rng = random.Random(prefix)
    tree_target, plain_target = open_target(replace(STRICT, widths=widths)), open_target(STRICT)
    for target in (tree_target, plain_target):
        assert target.prefill(prompt_of(prefix)).decoded == prefix
    moved = checked = 0
    for _ in range(40):
        tree = random_tree(rng, rng.randrange(13))
        if tree.leaves > STRICT.max_leaves:
            continue
        last = rng.randrange(300, 4000)
        rows = tree_target.evaluate(last, tree).logits.copy()
        path = random_path(rng, tree)
        tree_target.keep(path)
        moved += any(tree.first_leaves[node] for node in path)
        wanted = plain_rows(plain_target, [last, *(tree.tokens[node] for node in path)])
        for row, expected in zip([0, *(node + 1 for node in path)], wanted, strict=True):
            assert np.array_equal(rows[row], expected)
            checked += 1
        assert list(tree_target.tokens) == list(plain_target.tokens)
    assert moved >= 5 and checked >= 60  # other branches than the first have won, or this proves little


def test_padding_stays_within_the_context_and_brings_no_rows_of_its_own(open_target: Open) -> None:
    target = open_target(replace(STRICT, n_ctx=256, widths=(4, 8)))
    target.request(frozenset({LAST_HIDDEN, 3}))
    target.prefill(prompt_of(250))
    target.feed([301, 302])
    evaluation = target.evaluate(303, TokenTree.chain([304, 305]))  # with its padding it would need 258 cells
    assert len(evaluation.logits) == len(evaluation.hidden[LAST_HIDDEN]) == len(evaluation.hidden[3]) == 3
    target.keep((0, 1))
    assert target.cached == len(target.tokens) == 255


def test_prefill_reuses_the_common_prefix_and_rewinds_the_rest(open_target: Open) -> None:
    target, fresh = open_target(STRICT), open_target(STRICT)
    first, second = prompt_of(300), prompt_of(300)[:180] + prompt_of(90, seed=9)
    target.prefill(first)
    outcome = target.prefill(second)
    assert (outcome.reused, outcome.decoded, outcome.complete) == (180, 90, True)
    fresh.prefill(second)
    assert np.array_equal(target.evaluate(5).logits, fresh.evaluate(5).logits)


@pytest.mark.slow
def test_prefill_reports_chunks_and_a_cancel_keeps_what_was_read(open_target: Open) -> None:
    target, fresh = open_target(STRICT), open_target(STRICT)
    seen: list[PrefillChunk] = []
    outcome = target.prefill(prompt_of(700), seen.append, lambda: len(seen) >= 2)
    assert not outcome.complete and 0 < outcome.decoded < 700
    assert seen[-1].done == outcome.decoded == len(target.tokens) and seen[-1].total == 700
    assert [t for chunk in seen for t in chunk.tokens] == prompt_of(700)[: outcome.decoded]
    assert target.prefill(prompt_of(700)).reused == outcome.decoded
    fresh.prefill(prompt_of(700))
    assert np.array_equal(target.evaluate(5).logits, fresh.evaluate(5).logits)


def test_hidden_states_are_rows_of_the_tree(open_target: Open) -> None:
    target = open_target(STRICT)
    target.prefill(prompt_of(30))
    target.request(frozenset({LAST_HIDDEN, 0, 3}))
    target.feed([350, 351])
    found = target.evaluate(400, TokenTree.chain([401, 402]))
    width = target.abilities.n_embd
    assert {point: rows.shape for point, rows in found.hidden.items()} == dict.fromkeys([LAST_HIDDEN, 0, 3], (3, width))
    again = {point: rows.copy() for point, rows in found.hidden.items()}
    target.keep((0, 1))
    target.rewind(32)
    row = target.evaluate(400)
    for point, rows in row.hidden.items():
        assert np.allclose(rows[0], again[point][0], atol=1e-4)
    chunks: list[PrefillChunk] = []
    target.keep(())
    target.rewind(0)
    target.prefill(prompt_of(100), chunks.append)
    assert sum(len(chunk.hidden[3]) for chunk in chunks) == 100


def test_a_hidden_point_that_is_not_offered_is_refused_before_c_code_sees_it(open_target: Open) -> None:
    with pytest.raises(ValueError, match="99"):
        open_target(STRICT).request(frozenset({99}))


def test_a_saved_state_restores_bit_equal(open_target: Open) -> None:
    target, other = open_target(STRICT), open_target(STRICT)
    target.prefill(prompt_of(120))
    state, tokens = target.save(), list(target.tokens)
    other.restore(state, tokens)
    assert np.array_equal(target.evaluate(5).logits, other.evaluate(5).logits)
    with pytest.raises(SlipstreamError, match="does not fit"):
        open_target(STRICT).restore(state, tokens[:-1])


def test_a_full_context_is_an_error_and_nothing_is_lost(open_target: Open) -> None:
    target = open_target(replace(STRICT, n_ctx=256))
    with pytest.raises(ContextFullError, match="257 tokens, but the context holds 256"):
        target.prefill(prompt_of(257))
    target.prefill(prompt_of(250))
    with pytest.raises(ContextFullError):
        target.evaluate(5, TokenTree.chain([6] * 6))
    target.evaluate(5, TokenTree.chain([6] * 5))
    target.keep(range(5))
    assert len(target.tokens) == 256
