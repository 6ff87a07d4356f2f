"""The drafter on a real index: the right tree, the right trust, the same text."""

from pathlib import Path

import numpy as np
import pytest
from tests.drafters.replies import always, write
from tests.models.fake_target import FakeTarget

from slipstream.app.engine.stats import ReplyStats
from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Plain, Step
from slipstream.drafters.calibration import copy_probability
from slipstream.drafters.retrieval import Retrieval
from slipstream.drafters.text_index import FILE, TextIndex, TextPiece
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Evaluation, History, Token

NO_ROWS = Evaluation(np.zeros((1, 1), np.float32))
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def index(tmp_path: Path) -> TextIndex:
    return TextIndex(tmp_path / "index", "v1", 1000)


def add(index: TextIndex, *texts: list[Token]) -> None:
    index.add([TextPiece(str(number), text) for number, text in enumerate(texts)])


def draft_after(index: TextIndex, tokens: list[Token], **sizes: int) -> Draft:
    drafter, history = Retrieval(index, **sizes), History(tokens)
    drafter.begin(history)
    return drafter.draft(history, always, Sampler())


# --- the tree ---------------------------------------------------------------------------------------------------------


def test_a_single_continuation_is_a_chain(index: TextIndex) -> None:
    add(index, [1, 2, 3, 4, 5, 6])
    draft = draft_after(index, [9, 1, 2, 3])
    assert draft.tree.tokens == (4, 5, 6) and draft.tree.leaves == 1
    assert draft.probs == pytest.approx([copy_probability(matched) for matched in (3, 4, 5)])
    assert draft.sources == ("retrieval",) * 3


def test_continuations_become_a_trie_with_counts(index: TextIndex) -> None:
    add(index, *([[1, 2, 3, 4]] * 3), [1, 2, 3, 5], [1, 2, 6, 7], [1, 2])
    draft = draft_after(index, [1, 2])
    assert draft.tree.tokens == (3, 4, 5, 6, 7) and draft.tree.parents == (ROOT, 0, 0, ROOT, 3)
    two, three = copy_probability(2), copy_probability(3)
    assert draft.probs == pytest.approx([0.8 * two, 0.75 * three, 0.25 * three, 0.2 * two, three])


def test_the_longest_match_alone_is_drafted_from(index: TextIndex) -> None:
    add(index, [1, 2, 3, 4], *([[8, 2, 3, 5]] * 9))
    assert draft_after(index, [1, 2, 3]).tree.tokens == (4,)
    assert draft_after(index, [7, 2, 3]).tree.tokens == (5, 4)


def test_nothing_is_drafted_without_a_match_of_two_tokens(index: TextIndex) -> None:
    assert draft_after(index, [1, 2]) is NO_DRAFT
    add(index, [1, 2, 3])
    for tokens in ([9, 2], [2], [], [2, 3]):
        assert draft_after(index, tokens) is NO_DRAFT


def test_leaves_and_nodes_are_limited_and_the_most_probable_stay(index: TextIndex) -> None:
    add(index, *([1, 2, 10 + n, 20 + n, 30 + n] for n in range(12) for _ in range(12 - n)))
    whole = draft_after(index, [1, 2])
    assert whole.tree.leaves == 8
    assert {t for t, p in zip(whole.tree.tokens, whole.tree.parents, strict=True) if p == ROOT} == set(range(10, 18))
    few = draft_after(index, [1, 2], leaves=3)
    assert few.tree.leaves == 3 and few.tree.tokens == (10, 20, 30, 11, 21, 31, 12, 22, 32)
    assert draft_after(index, [1, 2], leaves=1).tree.tokens == (10, 20, 30)
    assert len(draft_after(index, [1, 2], limit=5).tree) == 5
    assert draft_after(index, [1, 2], limit=5).tree.tokens[0] == 10


def test_worth_decides_node_by_node_best_first(index: TextIndex) -> None:
    add(index, *([[1, 2, 3, 4, 5]] * 3), [1, 2, 6, 7])
    asked: list[tuple[float, int]] = []

    def should_extend(path: float, depth: int) -> bool:
        asked.append((path, depth))
        return path > 0.15

    drafter = Retrieval(index)
    draft = drafter.draft(History([1, 2]), should_extend, Sampler())
    assert draft.tree.tokens == (3, 4)
    assert asked[0] == (1.0, 1)
    paths = [path for path, _ in asked[1:]]
    assert paths == sorted(paths, reverse=True)
    assert drafter.draft(History([1, 2]), lambda path, depth: False, Sampler()) is NO_DRAFT


# --- what is accepted -------------------------------------------------------------------------------------------------


def step(drafter: Retrieval, history: History, tokens: list[Token], drafted: Draft = NO_DRAFT) -> None:
    history.tokens.extend(tokens)
    drafter.observe(history, Step(drafted, (), tuple(tokens), NO_ROWS))


def first_probability(drafter: Retrieval, tokens: list[Token]) -> float:
    return drafter.draft(History(list(tokens)), always, Sampler()).probs[0]


@pytest.mark.parametrize(("truth", "rises"), [([3, 4, 5], True), ([9, 4, 5], False)])
def test_trust_follows_what_the_target_wrote(truth: list[Token], rises: bool, index: TextIndex) -> None:
    add(index, [1, 2, 3, 4, 5])
    drafter = Retrieval(index)
    before = first_probability(drafter, [1, 2])
    for _ in range(30):
        history = History([1, 2])
        drafter.begin(history)
        drafter.draft(history, always, Sampler())
        step(drafter, history, truth)  # the step's own draft was empty
    after = first_probability(drafter, [1, 2])
    assert (after > 0.8) if rises else (after < 0.15)
    assert (after > before) is rises


def test_depths_behind_the_first_mistake_are_not_judged(index: TextIndex) -> None:
    add(index, [1, 2, 3, 4, 5])
    drafter = Retrieval(index)
    for _ in range(30):
        history = History([1, 2])
        drafter.draft(history, always, Sampler())
        step(drafter, history, [3, 9])
    trust = drafter.acceptance.trust
    assert trust(2) > 0.8 and trust(3) < 0.3
    assert trust(4) == copy_probability(4)


def test_a_guess_is_judged_only_by_the_step_that_follows_it(index: TextIndex) -> None:
    add(index, [1, 2, 3, 4])
    drafter, history = Retrieval(index), History([1, 2])
    drafter.draft(history, always, Sampler())
    drafter.rewind(1)
    history.tokens[1:] = [7, 7, 7]
    step(drafter, history, [9])
    drafter.draft(History([1, 2]), lambda path, depth: False, Sampler())
    step(drafter, History([1, 2]), [9])
    step(drafter, History([1, 2]), [9])
    assert drafter.acceptance.trust(2) == copy_probability(2)


def test_what_is_indexed_elsewhere_is_heard_at_the_next_reply(tmp_path: Path, index: TextIndex) -> None:
    drafter, history = Retrieval(index), History([1, 2])
    other = TextIndex(tmp_path / "index", "v1", 1000)
    add(other, [1, 2, 3])
    drafter.begin(history)
    assert drafter.draft(history, always, Sampler()).tree.tokens == (3,)
    other.remove(["0"])
    drafter.begin(history)
    assert drafter.draft(history, always, Sampler()) is NO_DRAFT


def test_damage_in_the_middle_of_a_chat_does_not_end_it(tmp_path: Path, index: TextIndex) -> None:
    add(index, [1, 2, 3])
    (tmp_path / "index" / FILE).write_text("broken")
    assert draft_after(index, [1, 2]).tree.tokens == (3,)


# --- the text ---------------------------------------------------------------------------------------------------------


def written(drafter: Drafter, sampler: Sampler) -> tuple[list[Token], ReplyStats]:
    return write(drafter, FakeTarget(n_vocab=24, order=2), sampler, prompt=PROMPT, least=0.1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(temperature: float, tmp_path: Path) -> None:
    index = TextIndex(tmp_path, "v1", 24)
    drafter = Retrieval(index)
    accepted = wrong = 0
    for seed in range(8):
        sampler = Sampler(temperature=temperature, seed=seed)
        plain, _ = written(Plain(), sampler)
        text, stats = written(drafter, sampler)
        assert text == plain
        accepted += stats.whole.accepted
        wrong += stats.whole.drafted - stats.whole.accepted
        index.add([TextPiece(f"chat {seed}", PROMPT + text)])
    assert accepted > 0, "no draft was ever right: this run shows nothing"
    assert wrong > 0 or not temperature, "no draft was ever wrong: this run shows nothing"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_that_is_in_the_index_is_written_in_fewer_steps(temperature: float, tmp_path: Path) -> None:
    sampler = Sampler(temperature=temperature, seed=4)
    plain, before = written(Plain(), sampler)
    index = TextIndex(tmp_path, "v1", 24)
    index.add([TextPiece("chat", PROMPT + plain)])
    text, stats = written(Retrieval(index), sampler)
    assert text == plain
    assert before.speed().tokens_per_step == 1
    assert stats.speed().tokens_per_step > 1.5
    index.remove(["chat"])
    text, stats = written(Retrieval(index), sampler)
    assert (text, stats.whole.drafted) == (plain, 0)
