"""A text that repeats itself is noticed."""

from slipstream.drafters.autopilot.active_set import Repetition


def test_a_run_that_stood_in_the_prompt_makes_a_streak() -> None:
    repeats = Repetition()
    repeats.begin([1, 2, 3, 4, 5, 6, 7, 8])
    streaks, text = [], [1, 2, 3, 4, 5, 6, 7, 8]
    for token in (20, 2, 3, 4, 5, 6, 9):
        text.append(token)
        repeats.follow(text)
        streaks.append(repeats.streak)
    assert streaks == [0, 0, 0, 0, 1, 2, 0]
    repeats.follow([*text, 2, 3, 4, 5])
    assert repeats.streak == 1  # as in the reply, too


def test_the_next_turn_reads_what_is_new_and_another_chat_begins_anew() -> None:
    repeats = Repetition()
    first = list(range(100))
    repeats.begin(first)
    repeats.begin([*first, 200, 201, 202, 203])
    repeats.follow([*first, 200, 201, 202, 203, 200, 201, 202, 203])
    assert repeats.streak == 1
    other = [300, *first[:3]]
    repeats.begin(other)
    repeats.follow([*other, 3])
    assert repeats.streak == 0
    repeats.follow([*other, 3, 300, 0, 1, 2, 3])
    assert repeats.streak == 2
