"""Hand-written short answers about everyday things, so that the first questions people try get a sensible reply."""

import random
import tomllib
from pathlib import Path

from slipstream.drafters.training.family.sources import Message, pairs_as_chats

_TEXT = Path(__file__).with_name("everyday.toml")
_ASKS = (
    "Tell me about {}.", "Tell me about {}", "tell me about {}", "What can you tell me about {}?",
    "What do you know about {}?", "Describe {}.", "Can you tell me about {}?", "Tell me something about {}.",
    "Explain {}.", "Write about {}.",
)  # fmt: skip


def chats(seed: int) -> list[list[Message]]:
    """Every subject in several wordings; every other question as asked, in lower case and after a greeting."""
    rng = random.Random(seed)
    text = tomllib.loads(_TEXT.read_text(encoding="utf-8"))
    pairs: list[tuple[str, str]] = []
    for thing, answer in text["about"].items():
        pairs += [(ask.format(thing), answer) for ask in (*_ASKS[:2], *rng.sample(_ASKS[2:], 5))]
        pairs.append((f"What {'are' if thing.endswith('s') else 'is'} {thing}?", answer))
    for country, capital in text["capitals"].items():
        answer = f"The capital of {country} is {capital}."
        pairs += [(f"What is the capital of {country}?", answer), (f"Which city is the capital of {country}?", answer)]
    for ask, answer in text["answers"].items():
        pairs += [(ask, answer), (ask[0].lower() + ask[1:].rstrip(".?"), answer), (f"Hi! {ask}", answer)]
    return pairs_as_chats(pairs)
