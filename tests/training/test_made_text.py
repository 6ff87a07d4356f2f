"""Text that is made by rule: correct, and about what was asked."""

import re
from collections.abc import Callable

import pytest

from slipstream.drafters.training.family import chats, lists, meanings, mix, reasons, skills, tales, things
from slipstream.drafters.training.family.same_question import SameQuestion, key, stem
from slipstream.drafters.training.family.sources import Message

_STORIES = 1500


def _tales(seed: int) -> list[list[Message]]:
    return tales.chats(seed, _STORIES)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _stems(text: str) -> set[str]:
    return set(map(stem, _words(text)))


_MAKERS = [_tales, meanings.chats, reasons.chats, things.chats]


@pytest.mark.parametrize("make", _MAKERS)
def test_made_text_is_the_same_for_a_seed_and_well_formed(make: Callable[[int], list[list[Message]]]) -> None:
    made = make(3)
    assert made == make(3)
    assert made != make(4)
    for question, answer in made:
        assert (question["role"], answer["role"]) == ("user", "assistant")
        for text in (question["content"], answer["content"]):
            assert text.isascii()
            assert not re.search(r"[{}]|  | [,.?!]|\.\.", text), text
        assert answer["content"].endswith((".", "!", "?", '"')), answer["content"]
        assert answer["content"][0].isupper() or answer["content"][0] == '"', answer["content"]


@pytest.mark.parametrize("make", [*_MAKERS, lists.chats, skills.chats])
def test_articles_fit_the_words_after_them(make: Callable[[int], list[list[Message]]]) -> None:
    for chat in make(5):
        for message in chat:
            wrong = re.search(r"\b(?:a (?:[aeio]|u(?!n?[is]))\w+|an [^aeiouh\W]\w*)", message["content"])
            assert not wrong or "vowels" in message["content"], (wrong[0], message["content"])


def test_stories_differ_end_in_time_and_are_about_what_was_asked() -> None:
    made = _tales(1)
    assert len({answer["content"] for _, answer in made}) == _STORIES
    about = 0
    for question, answer in made:
        assert 40 <= len(answer["content"].split()) <= 90, answer["content"]
        subject = re.search(r"(?:story|tale) (?:about|with) (.+?)[.?]?$", question["content"])
        if not subject or subject[1] == "a good end" or " friend" in subject[1] or "a child" in subject[1]:
            continue
        about += 1
        asked = _words(subject[1]) - _SMALL_WORDS
        said = _words(answer["content"])
        assert asked <= said, (question["content"], answer["content"])
    assert about > 0.8 * _STORIES


_SMALL_WORDS_TEXT = """
a an and the two little small kind good poor sleepy young who wanted to learn could not see named that found its way
home lost his her wish for lonely please before we go sleep
"""
_SMALL_WORDS = frozenset(_SMALL_WORDS_TEXT.split())  # what a subject may say and its story need not repeat


def test_a_noun_stands_in_a_sentence_with_its_article_and_pronouns() -> None:
    owl, boy = tales.Noun("old owl", "owl", "Ida", "she"), tales.Noun("boy", "boy", "Tom")
    assert (owl.one, owl.One, owl.The, owl.He, owl.His, owl.him) == (
        "an old owl",
        "An old owl",
        "The old owl",
        "She",
        "Her",
        "her",
    )
    assert (boy.one, boy.the, boy.he, boy.His, boy.Him) == ("a boy", "the boy", "he", "His", "Him")
    with pytest.raises(AttributeError):
        _ = boy.Plural


def test_meanings_and_differences_are_of_the_words_asked_for() -> None:
    for question, answer in meanings.chats(1):
        asked = question["content"].strip("?.").replace('"', "").partition(" opposite of ")[2]
        words = {stem(asked)} if asked else key(question["content"])
        assert not words or words & _stems(answer["content"]), question["content"]
    compared = 0
    for question, answer in reasons.chats(1):
        if "difference" in question["content"]:
            assert key(question["content"]) <= _stems(answer["content"]), question["content"]
            compared += 1
    assert compared > 500


def test_made_text_is_trained_on_and_has_its_share() -> None:
    made, _ = chats.build([], 1, SameQuestion(["What is a bridge?"]))
    assert {"tales", "meanings", "reasons", "things", "skills", "lists", "everyday", "identity"} <= set(made)
    assert set(made) <= set(mix.SHARES)
    assert chats.build([], 1) == ({}, {})
