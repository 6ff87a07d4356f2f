"""The table against a plain dictionary, and the tree against a search of all paths."""

import struct
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.replies import always, steps_of
from tests.models.fake_target import FakeTarget

from slipstream.drafters import recycle
from slipstream.drafters.base import NO_DRAFT, Draft, ShouldExtend, Step
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.recycle import RankAccuracy, TokenRecycling
from slipstream.drafters.tree import chain_draft
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Abilities, Evaluation, Floats, History, Token, TokenTree

N_VOCAB = 40
ABILITIES = Abilities(n_vocab=N_VOCAB, n_ctx=4096, n_embd=8, n_layer=2, max_rows=64, max_leaves=16)
GREEDY = Sampler(temperature=0)
CHAIN = TokenTree.chain((6, 7))


def observed(tree: TokenTree, path: tuple[int, ...], tokens: tuple[Token, ...], logits: Floats) -> TokenRecycling:
    drafter = TokenRecycling(ABILITIES)
    draft = Draft(tree, (0.5,) * len(tree), ("other",) * len(tree))
    drafter.observe(History([5, *tokens]), Step(draft, path, tokens, Evaluation(logits)))
    return drafter


def rows_of(drafter: TokenRecycling) -> dict[Token, list[Token]]:
    return {token: row.tolist() for token, row in enumerate(drafter.table) if drafter.sure[token] >= 0}


def random_logits(rows: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, N_VOCAB), np.float32)


def sorted_row(logits: Floats) -> list[Token]:
    best: list[Token] = np.argsort(-logits, kind="stable")[:8].tolist()
    return best


@pytest.mark.parametrize("size", [8, 9, 24, 63, 64, 65, 1000, 4096, 50_257])
def test_the_kept_tokens_are_those_of_a_whole_sort(size: int) -> None:
    logits = np.random.default_rng(size).standard_normal((3, size), np.float32)
    drafter = TokenRecycling(replace(ABILITIES, n_vocab=size))
    drafter.observe(History([5, 4]), Step(chain_draft([6, 7], [0.5, 0.5], "test"), (), (4,), Evaluation(logits)))
    wanted = [np.argsort(-row, kind="stable")[:8].tolist() for row in logits]
    assert rows_of(drafter) == {5: wanted[0], 6: wanted[1], 7: wanted[2]}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("should_extend", [None, always])
def test_every_row_enters_the_table_the_texts_last(temperature: float, should_extend: ShouldExtend | None) -> None:
    drafter, plain = TokenRecycling(ABILITIES), dict[Token, list[Token]]()
    for step, history in steps_of(drafter, FakeTarget(N_VOCAB), Sampler(temperature=temperature), should_extend):
        tree, logits = step.draft.tree, step.evaluation.logits
        for node in range(len(tree)):
            if node not in step.path:
                plain[tree.tokens[node]] = sorted_row(logits[node + 1])
        plain[history.tokens[-len(step.tokens) - 1]] = sorted_row(logits[0])
        for node in step.path:
            plain[tree.tokens[node]] = sorted_row(logits[node + 1])
        assert rows_of(drafter) == plain


def test_rows_of_probes_stay_out_and_a_token_seen_twice_keeps_that_of_the_text() -> None:
    logits = random_logits(4)
    tree = TokenTree((6, 7, 8), (-1, 0, -1), frozenset({1, 2}))
    assert set(rows_of(observed(tree, (), (9,), logits))) == {5, 6}
    logits = random_logits(4)
    tree = TokenTree((5, 6, 5), (-1, 0, -1))
    assert rows_of(observed(tree, (), (9,), logits))[5] == sorted_row(logits[0])
    assert rows_of(observed(tree, (0,), (5, 9), logits))[5] == sorted_row(logits[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_a_number_is_left_out(bad: float) -> None:
    logits = random_logits(3)
    logits[2] = bad
    logits[1, 4:] = -np.inf  # too few tokens for a row of the table
    drafter = observed(CHAIN, (), (9,), logits)
    assert rows_of(drafter) == {5: sorted_row(logits[0])}
    assert drafter.draft(History([7]), always, GREEDY) is NO_DRAFT
    whole = observed(CHAIN, (), (9,), random_logits(3))
    known = rows_of(whole)
    whole.observe(History([5, 9]), Step(Draft(CHAIN), (), (9,), Evaluation(np.full((3, N_VOCAB), bad, np.float32))))
    assert rows_of(whole) == known and known.keys() == {5, *CHAIN.tokens}


def filled(seed: int, nodes: int, leaves: int, abilities: Abilities = ABILITIES) -> TokenRecycling:
    rng = np.random.default_rng(seed)
    drafter = TokenRecycling(abilities, nodes, leaves)
    rows = np.argsort(rng.random((N_VOCAB, N_VOCAB)), axis=1)[:, :8]
    drafter.table[:], drafter.sure[:] = rows, rng.integers(0, 5, N_VOCAB)
    for sure in range(5):
        for _ in range(40):
            drafter.accuracy.add(sure, int(rng.choice(8, p=rng.dirichlet(np.arange(8, 0, -1)))))
    return drafter


def drafted_paths(draft: Draft) -> dict[tuple[Token, ...], float]:
    paths: list[tuple[Token, ...]] = []
    probs: list[float] = []
    for node, parent in enumerate(draft.tree.parents):
        paths.append((*(paths[parent] if parent >= 0 else ()), draft.tree.tokens[node]))
        probs.append(draft.probs[node] * (probs[parent] if parent >= 0 else 1))
    return dict(zip(paths, probs, strict=True))


@pytest.mark.parametrize("seed", range(8))
def test_the_tree_holds_the_most_probable_of_all_paths(seed: int) -> None:
    drafter = filled(seed, nodes=10, leaves=16)
    every: list[float] = []
    for depth in (1, 2, 3, 4):
        for ranks in product(range(8), repeat=depth):
            token, path = 5, 1.0
            for rank in ranks:
                rates = {rank: rate for rate, rank in drafter.accuracy.best_first(int(drafter.sure[token]))}
                path *= rates[rank]
                token = int(drafter.table[token, rank])
            every.append(path)
    draft = drafter.draft(History([5]), lambda path, depth: depth <= 4, GREEDY)
    assert sorted(drafted_paths(draft).values(), reverse=True) == pytest.approx(sorted(every, reverse=True)[:10])
    assert set(draft.sources) == {"recycle"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("leaves", [1, 2, 3, 8])
def test_leaves_and_nodes_are_bounded(seed: int, leaves: int) -> None:
    drafter = filled(seed, nodes=12, leaves=leaves)
    tree = drafter.draft(History([5]), always, GREEDY).tree
    assert len(tree) == 12 and tree.leaves <= leaves and (tree.leaves == leaves or leaves > 3)
    few = filled(seed, 12, leaves, Abilities(N_VOCAB, n_ctx=9, n_embd=8, n_layer=2, max_rows=6, max_leaves=2))
    assert len(few.draft(History([5]), always, GREEDY).tree) == 5
    assert few.draft(History([5]), always, GREEDY).tree.leaves <= 2
    assert len(few.draft(History([5] * 7), always, GREEDY).tree) == 2
    assert few.draft(History([5] * 9), always, GREEDY) is NO_DRAFT


def test_only_what_is_worth_it_is_drafted() -> None:
    drafter = filled(1, nodes=30, leaves=16)
    everything = drafted_paths(drafter.draft(History([5]), always, GREEDY))
    least = sorted(everything.values())[15]
    some = drafted_paths(drafter.draft(History([5]), lambda path, depth: path >= least and depth < 4, GREEDY))
    assert some == {path: prob for path, prob in everything.items() if prob >= least and len(path) < 4}
    assert drafter.draft(History([5]), lambda path, depth: False, GREEDY) is NO_DRAFT
    assert TokenRecycling(ABILITIES).draft(History([5]), always, GREEDY) is NO_DRAFT


def test_the_prior_is_the_papers_tree_and_what_is_heard_replaces_it() -> None:
    accuracy = RankAccuracy(8)
    first = accuracy.best_first(2)
    assert sum(rate for rate, _ in first) == pytest.approx(1)
    assert [rank for _, rank in first] == list(range(8)) and first[0][0] == pytest.approx(49 / 80)
    for turn in range(600):
        accuracy.add(2, (3, 3, 0, None)[turn % 4])
    (best, rank), (second, other), *_ = accuracy.best_first(2)
    assert (rank, other) == (3, 0)
    assert (best, second) == pytest.approx((0.5, 0.25), abs=0.04)
    assert accuracy.best_first(1) == first


def test_ranks_are_measured_by_the_text_whether_or_not_they_were_drafted() -> None:
    logits = random_logits(1)
    drafter = observed(TokenTree(), (), (9,), logits)
    sure = int(drafter.sure[5])
    step = Step(NO_DRAFT, (), (sorted_row(logits[0])[2],), Evaluation(logits))
    for _ in range(50):
        drafter.observe(History([1, 5, *step.tokens]), step)
    assert drafter.accuracy.best_first(sure)[0][1] == 2
    assert drafter.draft(History([5]), lambda path, depth: depth < 2, GREEDY).tree.tokens[0] == step.tokens[0]


def test_text_that_repeats_itself_is_accepted_and_a_new_text_profits() -> None:
    drafter = TokenRecycling(ABILITIES)
    sampler = Sampler(seed=4)
    counts = []
    for _ in range(2):
        steps = [step for step, _ in steps_of(drafter, FakeTarget(N_VOCAB, order=1), sampler)]
        assert sum(len(step.tokens) for step in steps) / len(steps) > 1.2
        counts.append(len(steps))
        drafter.rewind(0)
    assert counts[1] < counts[0]


def test_a_table_is_kept_from_one_run_to_the_next(tmp_path: Path) -> None:
    memory = DrafterMemory(tmp_path / "cache", "model")
    first = TokenRecycling(ABILITIES, memory=memory)
    assert not rows_of(first) and len(list(steps_of(first, FakeTarget(N_VOCAB), GREEDY))) > 5
    learnt = rows_of(first)
    assert not (tmp_path / "cache").exists()  # nothing is written while a reply is
    first.close()
    second = TokenRecycling(ABILITIES, memory=memory)
    assert rows_of(second) == learnt
    (file,) = (tmp_path / "cache").iterdir()
    before = file.stat().st_mtime_ns
    second.close()
    assert file.stat().st_mtime_ns == before  # it learnt nothing
    assert not rows_of(TokenRecycling(ABILITIES, memory=DrafterMemory(tmp_path / "cache", "other model")))


def test_a_kept_table_that_does_not_fit_is_replaced(tmp_path: Path) -> None:
    memory = DrafterMemory(tmp_path, "model")
    memory.write("recycle", packed_table(n_vocab=41))
    drafter = TokenRecycling(ABILITIES, memory=memory)
    assert not rows_of(drafter) and list(steps_of(drafter, FakeTarget(N_VOCAB), GREEDY))
    learnt = rows_of(drafter)
    drafter.close()
    assert rows_of(TokenRecycling(ABILITIES, memory=memory)) == learnt


def test_a_table_is_saved_every_few_minutes_at_a_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(recycle, "monotonic", lambda: now[0])
    memory = DrafterMemory(tmp_path, "model")
    drafter = TokenRecycling(ABILITIES, memory=memory)
    for minutes, saved in ((1, False), (3, False), (3.1, True), (5, False), (6.2, True)):
        now[0] = 1000 + 60 * minutes
        drafter.begin(History([1]))
        assert (memory.read("recycle") is not None) == saved
        for file in tmp_path.iterdir():
            file.unlink()
        assert len(list(steps_of(drafter, FakeTarget(N_VOCAB), GREEDY, size=9))) > 2


def packed_table(count: int = 2, token: int = 4, sure: int = 1, magic: bytes = b"RECYCLE1", n_vocab: int = 40) -> bytes:
    head = struct.pack("<8s3I", magic, n_vocab, 8, count)
    return head + struct.pack("<2i", token, 6) + struct.pack("<16i", *range(16)) + struct.pack("<2b", sure, 0)


@pytest.mark.parametrize(
    "packed",
    [
        b"", packed_table()[:19], packed_table(magic=b"SLIPSTRM"), packed_table(n_vocab=41), packed_table(count=1),
        packed_table(count=2**32 - 1), packed_table()[:-1], packed_table(token=-1), packed_table(token=40),
        packed_table(sure=-1), packed_table(sure=5),
    ],
)  # fmt: skip
def test_what_is_no_table_of_this_model_is_refused(packed: bytes) -> None:
    drafter = filled(0, 16, 8)
    before = drafter.dump()
    assert not drafter.load(packed) and drafter.dump() == before
    assert drafter.load(packed_table())
    assert rows_of(drafter)[4] == list(range(8)) and rows_of(drafter)[6] == list(range(8, 16))


@given(st.integers(0, len(packed_table()) - 1), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_damaged_table_is_refused_or_harmless(place: int, value: int) -> None:
    packed = bytearray(packed_table())
    packed[place] = value
    drafter = TokenRecycling(ABILITIES)
    if drafter.load(bytes(packed)):
        for token in rows_of(drafter):
            assert all(0 <= node < N_VOCAB for node in drafter.draft(History([token]), always, GREEDY).tree.tokens)
