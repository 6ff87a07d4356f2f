"""Chats that ask for the meanings of words in many wordings, so that the model answers about the word in question."""

import random
import tomllib
from pathlib import Path

from slipstream.drafters.training.family.sources import Message, pairs_as_chats

_TEXT = Path(__file__).with_name("meanings.toml")
_ASKS = (
    'What does "{}" mean?', "What does {} mean?", "Define {}.", 'Define the word "{}".', "What is the meaning of {}?",
    'Explain the word "{}".', "what does {} mean", 'What is the meaning of the word "{}"?', "Please define {}.",
    "Can you explain what {} means?", "Explain the word {}.", 'What do we mean by "{}"?', "define {}",
)  # fmt: skip
_OWN_ASKS = {
    "adjective": ("What does it mean to be {}?", "what does it mean to be {}"),
    "verb": ("What does it mean to {}?", "What do you do when you {}?"),
    "noun": ("What is {}?", "what is {}"),
}
_ANSWERS = {
    "adjective": ('"{word}" means {meaning}.', '"{word}" means {meaning}.', 'The word "{low}" means {meaning}.'),
    "verb": ('"{word}" means to {meaning}.', "To {low} is to {meaning}.", "To {low} means to {meaning}."),
    "noun": ("{word} is {meaning}.", '"{word}" means {meaning}.', 'The word "{low}" means {meaning}.'),
}
_COUNTED_WORDS = """
adventure choice comfort custom decision discovery doubt duty effort event example failure goal habit idea influence
journey legend memory mistake mystery opinion opportunity order pleasure problem promise purpose responsibility
result risk rumor skill success surprise talent tradition victory wish
"""
_COUNTED = frozenset(_COUNTED_WORDS.split())  # nouns that have an article in questions
_OPPOSITE_ASKS = (
    'What is the opposite of "{}"?', "What is the opposite of {}?", "Name the opposite of {}.",
    "Tell me the opposite of {}.", "what is the opposite of {}",
)  # fmt: skip


def chats(seed: int) -> list[list[Message]]:
    """Every word in nine wordings, each with its meaning and an example; and opposites in both directions."""
    rng = random.Random(seed)
    text = tomllib.loads(_TEXT.read_text(encoding="utf-8"))
    pairs: list[tuple[str, str]] = []
    for kind, answers in _ANSWERS.items():
        for word, (meaning, example) in text[kind].items():
            low = _with_article(word) if kind == "noun" else word
            for ask in (*rng.sample(_ASKS, 8), rng.choice(_OWN_ASKS[kind])):
                asked = low if ask in _OWN_ASKS["noun"] else word
                answer = rng.choice(answers)
                said = low if answer.startswith("{word} is") else word
                whole = answer.format(word=said[0].upper() + said[1:], low=word, meaning=meaning)
                pairs.append((ask.format(asked), f"{whole} {example}"))
    for one, other in text["opposites"].items():
        for word, opposite in ((one, other), (other, one)):
            for ask in rng.sample(_OPPOSITE_ASKS, 3):
                pairs.append((ask.format(word), f'The opposite of "{word}" is "{opposite}".'))
    return pairs_as_chats(pairs)


def _with_article(noun: str) -> str:
    if noun not in _COUNTED:
        return noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
