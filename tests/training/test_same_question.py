"""What is measured is not trained on: other wordings of a prompt are found, and other prompts are left alone."""

import random
from pathlib import Path

import pytest

from slipstream.drafters.training.family import chats, prompt_sets, sources
from slipstream.drafters.training.family.same_question import SameQuestion, key, stem
from slipstream.drafters.training.family.sources import Message, Row

HERE = Path(__file__).parent


def paraphrases() -> dict[str, list[str]]:
    """Other wordings of each development prompt, written by hand."""
    found: dict[str, list[str]] = {}
    prompt = ""
    for line in (HERE / "paraphrases.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            found[prompt].append(line.strip())
        else:
            prompt = line
            found[prompt] = []
    return found


def unrelated() -> list[str]:
    return (HERE / "unrelated.txt").read_text(encoding="utf-8").splitlines()


def chat(question: str) -> Row:
    return Row("gpteacher", "", (Message(role="user", content=question), Message(role="assistant", content="So.")))


def test_the_wordings_are_of_all_that_may_not_be_asked() -> None:
    barred = [prompt for kind, prompt in prompt_sets.development() if kind not in prompt_sets.BY_HEART]
    assert list(paraphrases()) == barred
    assert sum(map(len, paraphrases().values())) > 380


@pytest.mark.parametrize(("prompt", "wordings"), paraphrases().items())
def test_no_other_wording_of_a_prompt_survives(prompt: str, wordings: list[str]) -> None:
    asked = SameQuestion([prompt])
    assert [text for text in (prompt, prompt.upper(), *wordings) if not asked.find(text)] == []
    whole = f"My uncle came by with his truck on Sunday. {prompt} I look forward to it."
    assert asked.find(whole)


def test_nearly_all_other_prompts_survive() -> None:
    asked = SameQuestion(paraphrases())
    found = [text for text in unrelated() if asked.find(text)]
    assert len(unrelated()) > 100
    assert len(found) <= 0.07 * len(unrelated()), found  # of the very things that are asked for: rivers, fruits, colors


def test_text_to_train_on_asks_none_of_them_in_any_wording() -> None:
    wordings = [text for texts in paraphrases().values() for text in texts]
    rows = [chat(text) for text in (*paraphrases(), *wordings, "What is a boat?", "Who are you?")]
    made, left_out = chats.build(rows, 1, SameQuestion(paraphrases()))
    asked = {m["content"] for items in made.values() for each in items for m in each if m["role"] == "user"}
    assert not asked & {*paraphrases(), *wordings}
    assert {"What is a boat?", "Who are you?", "Hello!"} <= asked
    assert left_out["gpteacher"] == len(rows) - 2
    held, none = chats.build(rows, 1)
    assert not none and sum(len(each) for each in held["gpteacher"]) >= 2 * len(rows)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("river", "rivers"), ("library", "libraries"), ("fly", "flies"), ("fly", "flying"), ("run", "running")),
        *(("save", "saving"), ("polite", "politely"), ("colour", "colors"), ("box", "boxes"), ("leaf", "leaves")),
    ],
)
def test_words_of_one_family_have_one_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


@pytest.mark.parametrize(("one", "other"), [("sea", "seed"), ("bus", "bush"), ("star", "start"), ("bird", "bride")])
def test_other_words_have_other_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_a_story_about_a_thing_is_not_the_question_what_it_is() -> None:
    assert SameQuestion(["What is a bridge?"]).find("Tell me a story about a bridge.") is None
    assert SameQuestion(["Tell me a story about a fox."]).find("What is a fox?") is None
    assert key("Tell me a tale of two foxes.") == key("a short story about the fox")


def test_a_prompt_without_a_subject_is_refused() -> None:
    with pytest.raises(ValueError, match="'What is it'"):
        SameQuestion(["What is a bridge?", "What is it"])


def test_the_development_set_has_forty_prompts_of_every_kind() -> None:
    prompts = prompt_sets.development()
    assert len(prompts) == len({prompt for _, prompt in prompts}) == 40
    assert {kind for kind, _ in prompts} == {
        "greeting", "identity", "define", "list", "explain", "story", "shell", "rewrite"
    }  # fmt: skip


def test_the_test_set_is_the_one_that_was_fixed_and_is_asked_nowhere() -> None:
    rows = list(sources.plain_rows())
    fixed = prompt_sets.test_set(rows)
    assert len(set(fixed)) == prompt_sets.TEST_PROMPTS
    assert [prompt_sets.digest(prompt) for prompt in fixed] == prompt_sets.fixed_digests()
    random.Random(1).shuffle(rows)
    assert prompt_sets.choose_test_set(rows) == fixed
    barred = prompt_sets.barred_from_training(rows)
    assert all(barred.find(prompt) for prompt in fixed)
    near = SameQuestion(paraphrases())
    assert not [prompt for prompt in fixed if near.find(prompt)]


def test_a_test_prompt_that_is_gone_is_an_error() -> None:
    fixed = prompt_sets.test_set(sources.plain_rows())
    with pytest.raises(ValueError, match="1 prompts of the test set"):
        prompt_sets.test_set(row for row in sources.plain_rows() if row.messages[0]["content"] != fixed[7])
