"""The search for repeated text against plain comparing, and the drafter on top of it."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.drafters.replies import always

from slipstream.drafters.base import NO_DRAFT, Draft, Step
from slipstream.drafters.calibration import copy_probability
from slipstream.drafters.prompt_lookup import LONGEST, PromptLookup, RepeatedText
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Evaluation, History, Token, TokenTree

NO_ROWS = Evaluation(np.zeros((1, 1), np.float32))


def longest_repeated_suffix(tokens: Sequence[Token]) -> tuple[int, int]:
    """Length of the longest suffix that occurred before, and where its most recent earlier occurrence ends."""
    best = (0, -1)
    for end in range(len(tokens) - 2, -1, -1):
        length = 0
        while length <= end and tokens[end - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length > 1 and min(length, LONGEST) > best[0]:
            best = (min(length, LONGEST), end)
    return best


def random_text(seed: int) -> list[Token]:
    """Words repeated in random order, as text does, over vocabularies small and large."""
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.choice([1, 2, 3, 8, 50_000]))
    words = [[int(t) for t in rng.integers(0, vocabulary, rng.integers(1, 9))] for _ in range(12)]
    return [token for i in rng.integers(0, 12, 60) for token in words[i]][:220]


@pytest.mark.parametrize("seed", range(25))
def test_match_equals_plain_comparing(seed: int) -> None:
    repeated = RepeatedText()
    text = random_text(seed)
    for n, token in enumerate(text, start=1):
        repeated.extend([token])
        assert repeated.match() == longest_repeated_suffix(text[:n])


@pytest.mark.parametrize("seed", range(25))
def test_the_match_behind_further_tokens_equals_plain_comparing(seed: int) -> None:
    text, rng = random_text(seed), np.random.default_rng(seed)
    repeated = RepeatedText(text)
    for at in rng.integers(0, len(text) - 4, 40):
        ahead = [*text[at : at + int(rng.integers(1, 5))], *([int(rng.integers(9))] if rng.random() < 0.3 else [])]
        whole = text + ahead
        matched, end = repeated.match(ahead)
        longest = max(
            (
                n
                for n in range(len(whole))
                if n and any(text[e : e + n] == whole[-n:] for e in range(len(text) - n + 1))
            ),
            default=0,
        )
        assert matched == (min(longest, LONGEST) if longest > 1 else 0)
        assert not matched or text[end - matched + 1 : end + 1] == whole[-matched:]
    assert repeated.tokens == text


def test_the_most_recent_occurrence_is_taken_and_a_copy_that_reaches_the_end_goes_on() -> None:
    repeated = RepeatedText([1, 2, 30, 1, 2, 40, 1, 2])
    assert repeated.match() == (2, 4) and repeated.continuation(4, 2) == [40, 1]
    repeated = RepeatedText([9, 1, 2, 3, 1, 2])
    assert repeated.match() == (2, 2) and repeated.continuation(2, 8) == [3, 1, 2, 3, 1, 2, 3, 1]
    assert RepeatedText([7, 7]).continuation(0, 3) == [7, 7, 7]


def draft_after(tokens: list[Token], lookup: PromptLookup | None = None) -> Draft:
    lookup = lookup or PromptLookup()
    lookup.begin(History(tokens))
    return lookup.draft(History(tokens), always, Sampler())


def fed(lookup: PromptLookup, history: History, tokens: Sequence[Token]) -> None:
    history.tokens.extend(tokens)
    lookup.observe(history, Step(NO_DRAFT, (), tuple(tokens), NO_ROWS))


def test_drafts_what_followed_a_long_enough_match_within_the_limit() -> None:
    draft = draft_after([1, 2, 3, 4, 5, 6, 7, 1, 2, 3])
    assert draft.tree == TokenTree.chain((4, 5, 6, 7))  # one more than matched
    assert draft.probs == tuple(copy_probability(matched) for matched in (3, 4, 5, 6))
    assert set(draft.sources) == {"lookup"}
    assert draft_after([1, 2, 3, 1]) is NO_DRAFT
    assert draft_after([]) is NO_DRAFT
    words = list(range(50))
    assert len(draft_after(words + words[:20]).tree) == 16
    assert len(draft_after(words + words[:20], PromptLookup(limit=5)).tree) == 5
    assert draft_after(words + words[:20], PromptLookup(limit=0)) is NO_DRAFT


def test_worth_cuts_the_draft() -> None:
    asked: list[tuple[float, int]] = []

    def should_extend(path: float, depth: int) -> bool:
        asked.append((path, depth))
        return depth < 3

    history = History([1, 2, 3, 4, 5, 6, 1, 2, 3, 4])
    lookup = PromptLookup()
    lookup.begin(history)
    draft = lookup.draft(history, should_extend, Sampler())
    assert draft.tree.tokens == (5, 6)
    assert [depth for _, depth in asked] == [1, 2, 3]
    assert [path for path, _ in asked] == pytest.approx(np.cumprod([copy_probability(n) for n in (4, 5, 6)]))
    assert lookup.draft(history, lambda path, depth: False, Sampler()) is NO_DRAFT


def test_longer_matches_are_trusted_more() -> None:
    trust = [copy_probability(matched) for matched in range(1, 40)]
    assert trust == sorted(trust)
    assert 0 < trust[0] < 0.45
    assert (trust[1], trust[15], trust[-1]) == pytest.approx((0.45, 0.95, 0.95))


def test_a_trimmed_history_is_indexed_anew() -> None:
    lookup = PromptLookup()
    history = History([8, 8, 8, 1, 2, 3, 1, 2])
    lookup.begin(history)
    del history.tokens[:3]
    history.trimmed = 3
    assert lookup.draft(history, always, Sampler()).tree.tokens == (3, 1, 2)
    fed(lookup, history, [3])
    assert lookup.draft(history, always, Sampler()) == draft_after(list(history.tokens))


@pytest.mark.parametrize("seed", range(5))
def test_any_life_gives_the_drafts_of_a_fresh_one(seed: int) -> None:
    """Steps, cuts and new turns in any order: the drafts are those of a drafter that reads the history once."""
    rng = np.random.default_rng(seed)
    lookup, history, drafts = PromptLookup(), History([1, 2, 3]), 0
    lookup.begin(history)
    for _ in range(150):
        event = rng.random()
        if event < 0.1:
            length = int(rng.integers(0, len(history.tokens) + 1))
            del history.tokens[length:]
            lookup.rewind(length)
        elif event < 0.2:
            history.tokens.extend(int(t) for t in rng.integers(0, 3, rng.integers(0, 9)))
            lookup.begin(history)
        else:
            fed(lookup, history, [int(t) for t in rng.integers(0, 3, rng.integers(1, 5))])
        if rng.random() < 0.7:
            draft = lookup.draft(history, always, Sampler())
            assert draft == draft_after(list(history.tokens))
            drafts += len(draft.tree) > 0
    assert drafts > 50
