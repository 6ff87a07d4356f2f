import numpy as np
import pytest

from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.models.errors import UsageError


def numbered(chats: int, length: int) -> TrainingText:
    """Chats whose ids all differ, the first half of each a prompt."""
    half = length // 2
    weights = [0.0] * half + [1.0] * (length - half)
    return TrainingText.of((list(range(c * length, c * length + length)), weights) for c in range(chats))


def test_chats_that_are_held_out_are_not_trained_on() -> None:
    train, held = numbered(100, 8).split()
    assert len(held.offsets) - 1 == 5 and len(train.offsets) - 1 == 95
    assert set(train.ids.tolist()).isdisjoint(held.ids.tolist())
    assert len(train.ids) + len(held.ids) == 800
    with pytest.raises(UsageError, match="too little text"):
        numbered(1, 8).split()


def test_the_sampler_goes_on_where_it_was_stored() -> None:
    text = numbered(50, 100)
    one, two = WindowSampler(text, seed=5), WindowSampler(text, seed=5)
    for _ in range(7):
        one.batch(4, 64)
    two.restore(one.state())
    for _ in range(9):  # into the next round
        left, right = one.batch(4, 64), two.batch(4, 64)
        assert all(np.array_equal(left[i], right[i]) for i in range(3))


def test_windows_start_at_chats_and_number_them() -> None:
    ids, weights, chats = WindowSampler(numbered(40, 20), seed=4).batch(8, 63)
    assert (ids[:, 0] % 20 == 0).all()
    for row, weight, number in zip(ids, weights, chats, strict=True):
        assert ((row % 20 == 0)[1:] == (np.diff(number) == 1)).all()
        assert ((row % 20 >= 10) == (weight == 1)).all()


def test_every_window_of_a_long_text_is_read() -> None:
    sampler = WindowSampler(numbered(2, 650), seed=2)
    starts = {int(row[0]) for _ in range(40) for row in sampler.batch(4, 64)[0]}
    assert starts == {chat * 650 + 65 * window for chat in range(2) for window in range(10)}
