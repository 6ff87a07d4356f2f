import pytest

from slipstream.models.types import repeated_share


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("", 0),
        ("abcd", 0),
        ("abcdefgh", 0),
        ("abcdabcd", 1),
        ("abcdabcdabcd", 5),
        ("aaaaaaaa", 4),  # every run but the first, also where two overlap
        ("abcxabcyabcz", 0),
        ("the cat sat. the cat ran.", 5),  # "the cat " has five
    ],
)
def test_tokens_that_finish_a_run_of_four_are_counted(text: str, repeated: int) -> None:
    assert repeated_share([ord(each) for each in text]) == (repeated / len(text) if text else 0)
