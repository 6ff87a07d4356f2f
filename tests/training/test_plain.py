from pathlib import Path

import pytest

from slipstream.drafters.training.family import lists, sources


def test_every_plain_chat_goes_from_question_to_answer() -> None:
    rows = list(sources.plain_rows())
    assert len(rows) > 5000
    assert {row.source for row in rows} >= {"plain_words", "plain_talk", "plain_stories_a", "plain_mixed"}
    for row in rows:
        assert [m["role"] for m in row.messages] == ["user", "assistant"] * (len(row.messages) // 2)
        assert all(m["content"] and m["content"].isascii() for m in row.messages)


@pytest.mark.parametrize(
    "text", ["A: no question\n", "U: no answer\n", "U: one\nU: two\nA: three\n", "nothing at all\n"]
)
def test_turns_out_of_order_are_refused_with_the_file_named(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_1.txt").write_text(text)
    monkeypatch.setattr(sources, "_PLAIN", tmp_path)
    with pytest.raises(ValueError, match=r"odd_1\.txt"):
        list(sources.plain_rows())


def test_a_list_has_as_many_items_as_were_asked_for() -> None:
    made = lists.chats(seed=1)
    assert len(made) > 2000
    numbers = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
    counted = 0
    for question, answer in made:
        number = answer["content"].partition(" ")[0].lower()
        if asked := numbers.get(number, 0):
            assert f" {number} " in question["content"]
            start = question["content"].partition(f" {number} ")[2].removesuffix(" do you know?").rstrip(".?")
            assert answer["content"].startswith(f"{number.capitalize()} {start} are "), answer["content"]
            items = answer["content"].removeprefix(f"{number.capitalize()} {start} are ").rstrip(".")
            first, _, last = items.rpartition(" and ")
            assert len({*first.split(", "), last}) == asked, answer["content"]
            counted += 1
    assert counted > 1500
