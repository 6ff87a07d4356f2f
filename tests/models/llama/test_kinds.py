"""Targets of every kind of memory: what is rejected leaves no trace, and what cannot be taken back is read again."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.models.kinds import CHAINS, DIFFUSES, KINDS, LAYERS, PLAIN, TOKENS, TREES, WINDOW, write_kind

from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.architectures import HAS_FEATURES
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import WIDTHS, ContextOptions
from slipstream.models.types import LAST_HIDDEN, MTP_HIDDEN, TokenTree

OPTIONS = ContextOptions(n_ctx=512, kv="f32", flash=False, max_leaves=8, threads=1)
TOLERANCE = 1e-4  # logits are around 3; F32 sums of another order differ by 1e-6, one wrong token by 0.1 and more
REJECTIONS, BATCHES = 500, 10
PADDED = [(TREES[0], WIDTHS), (CHAINS[0], WIDTHS), (CHAINS[0], (4,))]
LAYER_INPUTS = {"llama", "qwen3", "qwen3moe", "lfm2", "qwen35", "qwen3next", "nemotron_h"}

OpenModel = Callable[[str], LlamaModel]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenModel]:
    folder, opened = tmp_path_factory.mktemp("kinds"), dict[str, LlamaModel]()

    def open_one(kind: str) -> LlamaModel:
        if kind not in opened:
            opened[kind] = LlamaModel(write_kind(folder / f"{kind}.gguf", kind))
        return opened[kind]

    yield open_one
    for model in opened.values():
        model.close()


def words(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(3, len(TOKENS)), k=count)


def random_tree(rng: random.Random, leaves: int) -> TokenTree:
    """A tree of 1 to 12 nodes and at most so many leaves; of 1 to 8 in a chain."""
    if leaves == 1:
        return TokenTree.chain(words(rng, rng.randint(1, 8)))
    while True:
        parents, path = list[int](), [-1]
        for node in range(rng.randint(1, 12)):
            while len(path) > 1 and rng.random() < 0.4:
                path.pop()
            parents.append(path[-1])
            path.append(node)
        tree = TokenTree(tuple(words(rng, len(parents))), tuple(parents))
        if tree.leaves <= leaves:
            return tree


def rejected_path(rng: random.Random, tree: TokenTree) -> list[int]:
    """A path that leaves at least one node of the tree behind; often an empty one."""
    node, path = -1, list[int]()
    while rng.random() < 0.7 and (children := [i for i, parent in enumerate(tree.parents) if parent == node]):
        node = rng.choice(children)
        path.append(node)
    return path[:-1] if len(path) == len(tree) else path


@contextmanager
def two_targets(model: LlamaModel) -> Iterator[tuple[LlamaTarget, LlamaTarget]]:
    with closing(LlamaTarget(model, OPTIONS)) as one, closing(LlamaTarget(model, OPTIONS)) as other:
        yield one, other


def difference(target: LlamaTarget, other: LlamaTarget, token: int) -> float:
    """Largest difference of the logits after one more token, which both keep."""
    worst = float(np.abs(target.evaluate(token).logits - other.evaluate(token).logits).max())
    target.keep(())
    other.keep(())
    return worst


def reject(
    model: LlamaModel, options: ContextOptions, rng: random.Random, widths: tuple[int, ...] = ()
) -> tuple[float, int, int]:
    """Rejects 500 drafts of random shapes, of which a random part is kept; returns the largest difference of any row
    from that of a context which never drafts, drafts of which a branch was kept that was not first in its batch, and
    the longest text."""
    worst, moved, longest = 0.0, 0, 0
    for _ in range(BATCHES):
        padded = replace(options, widths=widths)
        with closing(LlamaTarget(model, padded)) as target, closing(LlamaTarget(model, options)) as fresh:
            target.prefill(words(rng, rng.randint(1, 40)))
            for at in range(REJECTIONS // BATCHES):
                if at % 5 == 0:
                    fresh.rewind(0)
                    fresh.prefill(list(target.tokens))
                last, tree = words(rng, 1)[0], random_tree(rng, target.abilities.max_leaves)
                path = rejected_path(rng, tree)
                assert len(path) < len(tree)
                found = target.evaluate(last, tree).logits
                wanted = fresh.evaluate(last, TokenTree.chain([tree.tokens[node] for node in path])).logits
                worst = max(worst, float(np.abs(found[[0, *(node + 1 for node in path)]] - wanted).max()))
                fresh.keep(range(len(path)))
                target.keep(path)
                moved += any(tree.first_leaves[node] for node in path)
                assert list(target.tokens) == list(fresh.tokens)
            longest = max(longest, len(target.tokens))
            worst = max(worst, difference(target, fresh, 5))
    return worst, moved, longest


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "widths"), [*((kind, ()) for kind in (*TREES, *CHAINS)), *PADDED])
def test_after_each_of_500_rejections_the_next_logits_are_those_of_a_fresh_context(
    model_of: OpenModel, kind: str, widths: tuple[int, ...]
) -> None:
    worst, moved, longest = reject(model_of(kind), OPTIONS, random.Random(kind), widths)
    assert worst < TOLERANCE and longest > 3 * WINDOW
    assert kind in CHAINS or moved > 50


@pytest.mark.slow
def test_in_the_strict_class_not_a_bit_differs_after_500_rejections(bundled_model: LlamaModel) -> None:
    strict = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True, max_leaves=8, threads=1)
    worst, moved, _ = reject(bundled_model, strict, random.Random(0))
    assert worst == 0.0 and moved > 50


@pytest.mark.parametrize("kind", KINDS)
def test_any_rewind_is_right_whether_the_memory_can_be_cut_or_not(model_of: OpenModel, kind: str) -> None:
    rng = random.Random(kind)
    with two_targets(model_of(kind)) as (target, fresh):
        target.prefill(words(rng, 60))
        for turn in range(60):
            size = rng.randint(0, 8) if target.abilities.max_leaves else 0
            target.evaluate(words(rng, 1)[0], TokenTree.chain(words(rng, size)))
            if turn % 3:  # otherwise what was evaluated is given up
                target.keep(range(rng.randint(0, size)))
            target.rewind(max(1, len(target.tokens) - rng.randint(0, 10)))
            target.feed(words(rng, rng.randint(0, 4)))
            fresh.rewind(0)
            fresh.prefill(list(target.tokens))
            assert difference(target, fresh, words(rng, 1)[0]) < TOLERANCE
            if len(target.tokens) < 40:
                target.prefill([*target.tokens, *words(rng, 40)])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cancelled_prefill_leaves_is_right(model_of: OpenModel, kind: str) -> None:
    text = words(random.Random(3), 300)
    with two_targets(model_of(kind)) as (target, fresh):
        fresh.prefill(text)
        for calls in (1, 2, 40, 150):  # between chunks, and between the nodes of a chunk's graph
            asked = iter(range(10_000))
            outcome = target.prefill(text, cancelled=lambda asked=asked, calls=calls: next(asked) >= calls)  # type: ignore[misc]
            assert not outcome.complete and list(target.tokens) == text[: len(target.tokens)]
            assert target.prefill(text).complete and difference(target, fresh, 5) < TOLERANCE
            target.rewind(0)
            fresh.rewind(300)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_goes_on_where_it_was(model_of: OpenModel, kind: str) -> None:
    rng = random.Random(4)
    with two_targets(model_of(kind)) as (target, other):
        target.prefill(words(rng, 70))
        if target.abilities.max_leaves:
            target.evaluate(9, TokenTree.chain(words(rng, 6)))
            target.keep((0, 1))  # a cut that llama.cpp makes with the next batch only
        other.prefill(words(rng, 20))
        other.restore(target.save(), list(target.tokens))
        assert difference(target, other, 5) < TOLERANCE
        other.rewind(30)  # before the state
        target.rewind(0)
        target.prefill(list(other.tokens))
        assert difference(target, other, 5) < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_offers_what_it_can_take_back(model_of: OpenModel, kind: str) -> None:
    with closing(LlamaTarget(model_of(kind), OPTIONS)) as target:
        abilities = target.abilities
        wanted = (64, 8) if kind in TREES else (9, 1) if kind in CHAINS else (1, 0)
        assert (abilities.max_rows, abilities.max_leaves) == wanted
        target.prefill([5, 6])
        with pytest.raises(ValueError, match="too large"):
            target.evaluate(5, TokenTree.chain([6] * abilities.max_rows))
        with pytest.raises(ValueError, match="too large"):
            target.evaluate(5, TokenTree((6,) * 9, (-1,) * 9))


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_points_that_a_kind_offers_can_be_read_and_no_others(model_of: OpenModel, kind: str) -> None:
    with closing(LlamaTarget(model_of(kind), OPTIONS)) as target:
        layers = set(range(LAYERS)) if kind in LAYER_INPUTS else set[int]()
        features = {MTP_HIDDEN} if kind in HAS_FEATURES else set[int]()
        assert target.abilities.hidden == {LAST_HIDDEN, *layers, *features}
        target.request(target.abilities.hidden)
        chain = TokenTree.chain([7, 8] if target.abilities.max_leaves else [])
        chunks = list[int]()
        target.prefill(words(random.Random(2), 90), lambda chunk: chunks.append(len(chunk.hidden[LAST_HIDDEN])))
        assert sum(chunks) == 90 and max(chunks) > 9
        found = target.evaluate(5, chain)
        assert {rows.shape for rows in found.hidden.values()} == {(1 + len(chain), target.abilities.n_embd)}
        assert all(np.isfinite(rows).all() and rows.any() for rows in found.hidden.values())
        target.keep(())


@pytest.mark.parametrize("kind", CHAINS)
def test_the_copies_of_a_recurrent_state_are_as_many_as_asked_for(model_of: OpenModel, kind: str) -> None:
    with closing(LlamaTarget(model_of(kind), ContextOptions(n_ctx=256, rollback=3))) as target:
        assert (target.abilities.max_rows, target.abilities.max_leaves) == (4, 1)
    with closing(LlamaTarget(model_of(kind), ContextOptions(n_ctx=256, rollback=0))) as target:
        assert (target.abilities.max_rows, target.abilities.max_leaves) == (1, 0)


def test_a_model_that_does_not_write_token_by_token_is_refused(tmp_path: Path) -> None:
    model = LlamaModel(write_kind(tmp_path / "model.gguf", DIFFUSES))
    with closing(model), pytest.raises(SlipstreamError, match="does not write"):
        LlamaTarget(model, OPTIONS)


@pytest.mark.parametrize("kind", [*CHAINS, *PLAIN])
def test_a_wrong_guess_of_single_passes_costs_no_second_reading(model_of: OpenModel, kind: str) -> None:
    """As a draft model works: one token a pass, then back to where the target disagreed."""
    rng = random.Random(kind)
    with two_targets(model_of(kind)) as (target, fresh):
        text = words(rng, 200)
        target.prefill(text)
        for _ in range(25):
            text += words(rng, rng.randint(1, 3))
            target.feed(text[len(target.tokens) : -1])
            for token in [text[-1], *words(rng, rng.randint(0, 5))]:
                target.evaluate(token)
                target.keep(())
            guessed = list(target.tokens)[len(text) :]
            text += guessed[: rng.randint(0, len(guessed))]
            target.rewind(len(text))
            assert target.cached >= 200
            fresh.rewind(0)
            fresh.prefill(text)
            text += words(rng, 1)
            assert difference(target, fresh, text[-1]) < TOLERANCE


@pytest.mark.parametrize("kind", [*CHAINS, *PLAIN])
def test_a_reply_that_is_written_again_does_not_read_the_chat_again(model_of: OpenModel, kind: str) -> None:
    rng = random.Random(kind)
    with two_targets(model_of(kind)) as (target, fresh):
        chat = words(rng, 150)
        target.prefill(chat)
        for _ in range(3):
            for token in words(rng, 20):
                target.evaluate(token)
                target.keep(())
            assert target.prefill(chat).decoded == 0
            fresh.rewind(0)
            fresh.prefill(chat)
            assert difference(target, fresh, 5) < TOLERANCE
        assert target.prefill([*chat[:100], 9, *chat[100:]]).reused == 0  # before the mark
