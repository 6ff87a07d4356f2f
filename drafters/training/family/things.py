"""Chats about common words, both ways: what is a bridge, and what do you call a road that goes over a river."""

import random
import tomllib
from pathlib import Path

from slipstream.drafters.training.family.sources import Message, pairs_as_chats, upper_first

_TEXT = Path(__file__).with_name("things.toml")
_ASKS = (
    "What is {one}?", "what is {one}", "Define {word}.", 'What does "{word}" mean?', "What does {word} mean?",
    'Define the word "{word}".', "Explain the word {word}.", "Can you explain what {one} is?", "Tell me what {one} is.",
)  # fmt: skip
_OTHER_WAY = (
    "What do you call {meaning}?", "What is the word for {meaning}?", "Which word means {meaning}?",
    "what do you call {meaning}", "What is {meaning} called?",
)  # fmt: skip
_MORE = ("Write a sentence about {one}.", "Tell me something about {one}.", "What do you know about {one}?")
_ASKS_QUALITY = (
    'What does "{word}" mean?', "What does {word} mean?", 'Define the word "{word}".', "Define {word}.",
    "What does it mean to be {word}?", 'Explain the word "{word}".', "What is the meaning of {word}?",
)  # fmt: skip
_OTHER_WAY_QUALITY = (
    "Which word means {meaning}?", "What is the word for {meaning}?", "What is another way to say {meaning}?",
    "Tell me a word that means {meaning}.",
)  # fmt: skip
_USE = (
    'Use the word "{word}" in a sentence.',
    'Write a sentence with the word "{word}".',
    "Make a sentence with {word}.",
)
_MASS_WORDS = """
butter cheese fire glass gold honey ice jam milk rain salt scissors snow soap sugar tea wool
"""
_MASS = frozenset(_MASS_WORDS.split())  # things without an article
_THE = frozenset({"moon", "sun"})


def chats(seed: int) -> list[list[Message]]:
    """Every word in several wordings of both questions, and used in a sentence."""
    rng = random.Random(seed)
    text = tomllib.loads(_TEXT.read_text(encoding="utf-8"))
    pairs: list[tuple[str, str]] = []
    for word, (meaning, more) in text["things"].items():
        pairs += _named(word, _article(word), meaning, more, rng)
    for word, (meaning, more) in text["feelings"].items():
        pairs += _named(word, word, meaning, more, rng)
    for word, (meaning, more) in text["qualities"].items():
        said = f'"{upper_first(word)}" means {meaning}. {more}'
        asks = (*rng.sample(_ASKS_QUALITY, 5), *rng.sample(_OTHER_WAY_QUALITY, 3))
        pairs += [(ask.format(word=word, meaning=meaning), said) for ask in asks]
        pairs += [(ask.format(word=word), more) for ask in rng.sample(_USE, 2)]
    return pairs_as_chats(pairs)


def _named(word: str, one: str, meaning: str, more: str, rng: random.Random) -> list[tuple[str, str]]:
    verb = "are" if word.endswith("rs") else "is"
    said = f"{upper_first(one)} {verb} {meaning}. {more}"
    made = [(ask.format(word=word, one=one, meaning=meaning), said) for ask in rng.sample(_ASKS, 6)]
    called = f"{upper_first(meaning)} is called {one}. {more}"
    made += [(ask.format(meaning=meaning), called) for ask in rng.sample(_OTHER_WAY, 3)]
    made.append((rng.choice(_MORE).format(one=one), said))
    return made


def _article(word: str) -> str:
    if word in _THE:
        return f"the {word}"
    if word in _MASS:
        return word
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
