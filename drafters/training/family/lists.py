"""Chats that ask for lists of everyday things in many wordings; a reply has as many items as were asked for."""

import random
import tomllib
from pathlib import Path
from typing import Any

from slipstream.drafters.training.family.sources import Message, pairs_as_chats

_TEXT = Path(__file__).with_name("lists.toml")
_NUMBERS = ("two", "three", "four", "five", "six", "seven")
_DRAWS = 4  # chats for each list and number of items
_ASKS = (
    "Name {} {}.", "List {} {}.", "Give me {} {}.", "name {} {}", "list {} {}", "Can you name {} {}?", "Tell me {} {}.",
    "Can you list {} {}?", "Please name {} {}.", "I need {} {}.", "Write down {} {}.", "Give me a list of {} {}.",
    "What are {} {}?", "Please give me {} {}.", "give me {} {}", "Which {} {} do you know?",
)  # fmt: skip
_ASKS_ALL = ("List the {}.", "Name the {}.", "What are the {}?", "list all the {}", "Can you name all the {}?")
_ASKS_SOME = ("What are some {}?", "List some {}.", "Tell me some {}.", "name some {}", "Give me examples of {}.")


def chats(seed: int) -> list[list[Message]]:
    """Makes several chats of each list: with a number, and without one (all items of a fixed list, else some)."""
    rng = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    for entry in tomllib.loads(_TEXT.read_text(encoding="utf-8"))["list"]:
        pairs += _numbered(entry, rng)
        whole = bool(entry.get("fixed"))
        items = entry["items"] if whole else rng.sample(entry["items"], min(5, len(entry["items"])))
        for ask in rng.sample(_ASKS_ALL, 5) if whole else rng.sample(_ASKS_SOME, 2):
            start = f"The {entry['plural']}" if whole else f"Some {entry['plural']}"
            pairs.append((ask.format(entry["plural"]), f"{start} are {_joined(items)}."))
    return pairs_as_chats(pairs)


def _numbered(entry: dict[str, Any], rng: random.Random) -> list[tuple[str, str]]:
    made = []
    for count, number in enumerate(_NUMBERS, start=2):
        if count < len(entry["items"]):
            for ask in rng.sample(_ASKS, _DRAWS):
                items = _joined(rng.sample(entry["items"], count))
                answer = f"{number.capitalize()} {entry['plural']} are {items}."
                made.append((ask.format(number, entry["plural"]), answer))
    return made


def _joined(items: list[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}"
