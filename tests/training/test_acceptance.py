import numpy as np
import pytest

from slipstream.drafters.training.acceptance import Acceptance, by_depth, chain_guesses, mean, of_guesses


def test_a_depth_counts_only_where_all_before_it_were_right() -> None:
    right = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], bool)
    written = np.ones_like(right)
    written[3, 2] = False  # the reply ends there
    found = by_depth(right, written)
    assert found.shares == (3 / 4, 2 / 3, 0.0)
    assert found.reached == (4, 3, 1)


def test_tokens_per_step_add_up_the_chances_of_every_depth() -> None:
    found = Acceptance((0.5, 0.5, 0.4), (10, 5, 2))
    assert found.tokens_per_step(0) == 1
    assert found.tokens_per_step(2) == 1.75
    assert found.tokens_per_step(9) == pytest.approx(1.85)


def test_guesses_are_held_against_the_tokens_below_each_root() -> None:
    ids = np.array([[7, 1, 2, 3, 4, 0]])
    weights = np.array([[0, 1, 1, 1, 1, 0]], np.float32)  # 7 is the prompt, 0 belongs to the next chat
    guesses = np.full((1, 5, 2), -1)
    guesses[0, 1] = 2, 3  # below the root 1: both right
    guesses[0, 2] = 3, 9  # below 2: the second is wrong
    guesses[0, 3] = 9, 9  # below 3: wrong
    guesses[0, 0] = 1, 2  # below the prompt: not counted, the target wrote no root there
    found = of_guesses(guesses, ids, weights)
    assert found.shares == (2 / 3, 1 / 2)
    assert found.reached == (3, 2)


def test_a_chain_guesses_what_it_would_guess_on_the_text_itself() -> None:
    best = np.array([[5, 6, 7, 8]])
    assert chain_guesses(best, 3)[0].tolist() == [[5, 6, 7], [6, 7, 8], [7, 8, -1], [8, -1, -1]]


def test_parts_weigh_by_how_much_they_counted() -> None:
    whole = mean([Acceptance((1.0, 0.5), (30, 10)), Acceptance((0.0, 0.0), (10, 0))])
    assert whole.shares == (0.75, 0.5)
    assert whole.reached == (40, 10)
