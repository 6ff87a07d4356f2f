"""Short explanations of nature and everyday things: why, how, what something does, how two things differ."""

import itertools
import random
import tomllib
from pathlib import Path
from typing import Any

from slipstream.drafters.training.family.sources import Message, pairs_as_chats, upper_first

_TEXT = Path(__file__).with_name("reasons.toml")
_WHY = (
    "Why {asked}?", "Why {asked}?", "why {asked}", "Explain why {told}.", "Explain why {told}.",
    "Can you explain why {told}?", "Can you tell me why {told}?", "Tell me why {told}.", "Please explain why {told}.",
)  # fmt: skip
_HOW = (
    "How {asked}?", "How {asked}?", "how {asked}", "Explain how {told}.", "Can you explain how {told}?",
    "Tell me how {told}.", "Can you tell me how {told}?",
)  # fmt: skip
_DOES = (
    "What does {} do?", "Explain what {} does.", "Explain what {} does.", "Tell me what {} does.",
    "what does {} do", "Can you explain what {} does?",
)  # fmt: skip
_DIFFER = (
    "What is the difference between {} and {}?", "What is the difference between {} and {}?",
    "Explain the difference between {} and {}.", "How is {} different from {}?",
    "what's the difference between {} and {}", "Tell me the difference between {} and {}.",
)  # fmt: skip
_DIFFER_ANSWERS = (
    "{One} {says}, but {other} {says_too}.",
    "{One} {says}, but {other} {says_too}. {both}.",
    "The difference is that {one} {says}, and {other} {says_too}.",
    "{both}, but {one} {says}, while {other} {says_too}.",
)
_WATER = {
    "float": (
        "{it} {floats} because it is lighter than the same amount of water. The water pushes it up.",
        "{it} {floats} because it weighs less than the water that it pushes away. So the water carries it.",
    ),
    "sink": (
        "{it} {floats} because it is heavier than the same amount of water. The water cannot carry it.",
        "{it} {floats} because it weighs more than the water that it pushes away.",
    ),
}


def chats(seed: int) -> list[list[Message]]:
    """Every explanation in several wordings."""
    rng = random.Random(seed)
    text = tomllib.loads(_TEXT.read_text(encoding="utf-8"))
    pairs: list[tuple[str, str]] = []
    for asks, entries in ((_WHY, text["why"]), (_HOW, text["how"])):
        for asked, told, *answers in entries:
            pairs += [(ask.format(asked=asked, told=told), answer) for ask in asks for answer in answers]
    for thing, does in text["does"].items():
        pairs += [(ask.format(thing), f"{upper_first(thing)} {does}.") for ask in _DOES]
    for floats, things in (("float", text["water"]["floating"]), ("sink", text["water"]["sinking"])):
        pairs += [pair for thing in things for pair in _in_water(thing, floats, rng)]
    for group in text["difference"].values():
        pairs += _differences(group, rng)
    return pairs_as_chats(pairs)


def _in_water(thing: str, floats: str, rng: random.Random) -> list[tuple[str, str]]:
    made = []
    for ask in rng.sample(_WHY, 4):
        answer = rng.choice(_WATER[floats]).format(it=upper_first(thing), floats=f"{floats}s")
        made.append((ask.format(asked=f"does {thing} {floats}", told=f"{thing} {floats}s"), answer))
    does = f"Does {thing} float in water?"
    says = f"Yes, {thing} floats" if floats == "float" else f"No, {thing} sinks"
    return [*made, (does, f"{says}, because it is {'lighter' if floats == 'float' else 'heavier'} than water.")]


def _differences(group: dict[str, Any], rng: random.Random) -> list[tuple[str, str]]:
    things = {thing: says for thing, says in group.items() if thing != "both"}
    made = []
    for one, other in itertools.permutations(things, 2):
        ask, answer = rng.choice(_DIFFER), rng.choice(_DIFFER_ANSWERS)
        said = answer.format(
            One=upper_first(one), one=one, says=things[one], other=other, says_too=things[other], both=group["both"]
        )
        made.append((ask.format(one, other), said))
    return made
