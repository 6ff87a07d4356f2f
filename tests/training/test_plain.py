from pathlib import Path

import pytest

from slipstream.drafters.training.family import chats, lists, plain
from slipstream.drafters.training.family.sources import Message, Row


def test_every_plain_chat_goes_from_question_to_answer() -> None:
    rows = list(plain.rows())
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
    monkeypatch.setattr(plain, "_FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"odd_1\.txt"):
        list(plain.rows())


def test_the_exam_has_forty_prompts_of_every_kind() -> None:
    prompts = plain.exam()
    assert len(prompts) == len({prompt for _, prompt in prompts}) == 40
    assert {kind for kind, _ in prompts} == {
        "greeting", "identity", "define", "list", "explain", "story", "shell", "rewrite"
    }  # fmt: skip


def test_no_training_chat_asks_the_exam_in_any_wording() -> None:
    asked = [prompt for kind, prompt in plain.exam() if kind not in ("greeting", "identity")]
    rows = [
        Row("gpteacher", "", (Message(role="user", content=text), Message(role="assistant", content="So it is.")))
        for text in [
            asked[0].upper(),
            asked[1].rstrip(".?"),
            "What is a boat?",
            "Can you tell me why the sky is blue?",
            'Please explain what the word "brave" means.',
            "I want a tale about a lost key",
            "Explain how birds fly.",
        ]
    ]
    made = chats.build(rows, seed=1, train=True)
    questions = {m["content"] for items in made.values() for chat in items for m in chat if m["role"] == "user"}
    assert "What is a boat?" in questions
    assert not {plain.gist(q) for q in questions} & {plain.gist(q) for q in asked}
    assert "Who are you?" in questions


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
