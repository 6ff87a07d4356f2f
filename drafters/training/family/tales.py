"""Makes stories from a grammar, so that a small model learns to tell a story about the subject in the request."""

import random
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.drafters.training.family.sources import Message

_TEXT = Path(__file__).with_name("tales.toml")
_COUNT = 12_000
_WORDS = 90  # a longer story is drawn again
_ASKS = (
    "Tell me a story about {}.", "Tell me a story about {}.", "Tell me a story about {}.", "tell me a story about {}",
    "Write a short story about {}.", "Write a short story about {}.", "Write a story about {}.",
    "Tell me a short story about {}.", "Tell me a short story about {}.", "Can you tell me a tale about {}?",
    "Can you tell me a story about {}?", "Please tell me a story about {}.", "I would like to hear a story about {}.",
    "Make up a story about {}.", "Could you write a little story about {}?", "Do you know a story about {}?",
    "A story about {}, please.", "I want a story about {}.",
)  # fmt: skip
_BEDTIME_ASKS = (
    "Tell me a bedtime story about {}.", "Tell me a bedtime story with {}.", "Can you tell a bedtime story about {}?",
    "Please tell me a good night story about {}.", "Write a bedtime story about {}.",
    "I cannot sleep. Tell me a story about {}.", "It is late. Tell my child a story about {}.",
    "We want a story about {} before we go to sleep.",
)  # fmt: skip
_OPEN_ASKS = (
    "Tell me a story.", "Tell me a short story.", "Write a story.", "Write a short story.", "tell me a story",
    "Can you tell me a story?", "I would like to hear a story.", "Please tell me a nice story.", "Make up a story.",
    "Do you know a good story?", "A short story, please.", "Tell me another story.", "Tell me a story with a good end.",
)  # fmt: skip
_SLEEPY_ASKS = (
    "I cannot sleep. Please tell me something.", "Tell me a story to fall asleep.", "A good night story, please.",
    "I am in bed. Can you tell me a story?", "Can you help my child to fall asleep with a story?",
)  # fmt: skip
_OPEN_SHARE = 0.06
_SLOTS = ("home", "food", "day", "night", "color", "town", "skill", "sight", "outside")


@dataclass(frozen=True)
class Noun:
    """A noun of a story, in the forms that its sentences need."""

    noun: str  # with its adjective, without article
    bare: str  # without its adjective
    name: str = ""  # of a character
    he: str = "he"  # ``he`` or ``she``

    @property
    def one(self) -> str:
        """With the indefinite article, for the first mention."""
        return _with_article(self.noun)

    @property
    def any(self) -> str:
        """With the indefinite article, without its adjective."""
        return _with_article(self.bare)

    @property
    def the(self) -> str:
        """With the definite article, for later mentions."""
        return f"the {self.noun}"

    @property
    def his(self) -> str:
        """The possessive pronoun."""
        return "his" if self.he == "he" else "her"

    @property
    def him(self) -> str:
        """The object pronoun."""
        return "him" if self.he == "he" else "her"

    def __getattr__(self, name: str) -> str:
        """A form with a capital, for the start of a sentence: ``One`` for ``one``, and so on."""
        lower = name[:1].lower() + name[1:]
        if lower == name or lower not in ("one", "the", "he", "his", "him"):
            raise AttributeError(name)
        text: str = getattr(self, lower)
        return text[0].upper() + text[1:]


def chats(seed: int, count: int = _COUNT) -> list[list[Message]]:
    """Requests for a story, each with a story about the requested subject.

    Args:
        seed: chooses plots, wordings, characters and things.
        count: number of different stories.
    """
    rng = random.Random(seed)
    grammar = tomllib.loads(_TEXT.read_text(encoding="utf-8"))
    plots = [(kind, plot) for kind, plots in sorted(grammar["plots"].items()) for plot in plots]
    made: dict[str, str] = {}
    while len(made) < count:
        kind, plot = rng.choice(plots)
        cast = _cast(grammar["kinds"][kind], grammar["lists"], rng)
        story = " ".join(rng.choice(wordings).format_map(cast) for wordings in plot["steps"])
        ask = _ask(kind, rng.choice(plot.get("about", grammar["kinds"][kind]["about"])).format_map(cast), rng)
        if len(story.split()) <= _WORDS:
            made[story] = ask
    return [
        [Message(role="user", content=ask), Message(role="assistant", content=story)] for story, ask in made.items()
    ]


def _ask(kind: str, subject: str, rng: random.Random) -> str:
    sleepy = kind == "bedtime"
    if rng.random() < _OPEN_SHARE:
        return rng.choice(_SLEEPY_ASKS if sleepy else _OPEN_ASKS)
    return rng.choice(_BEDTIME_ASKS if sleepy else _ASKS).format(subject)


def _cast(kind: dict[str, Any], lists: dict[str, list[str]], rng: random.Random) -> dict[str, Any]:
    """Fills every slot; places differ; the characters differ in name and, unless both are of ``groups``, in kind."""
    cast: dict[str, Any] = {slot: rng.choice(lists[f"{slot}s"]) for slot in _SLOTS}
    cast |= {f"{slot}_low": cast[slot][0].lower() + cast[slot][1:] for slot in ("day", "night")}
    cast["spots"] = rng.sample(lists["spots"], 3)
    one = rng.choice(lists[kind["a"]])
    other = one if kind["a"] == kind["b"] == "groups" else rng.choice(lists[kind["b"]])
    while other == one and kind["b"] != "groups":
        other = rng.choice(lists[kind["b"]])
    cast["a"] = _character(one, lists, rng, "")
    cast["b"] = _character(other, lists, rng, cast["a"].name)
    cast["many"] = one.partition(":")[0].rpartition("/")[2]
    if "x" in kind:
        bare = rng.choice(lists[kind["x"]])
        adjective = rng.choice(kind.get("adjectives", [""]))
        cast["x"] = Noun(f"{adjective} {bare}".strip(), bare)
    return cast


def _character(entry: str, lists: dict[str, list[str]], rng: random.Random, taken: str) -> Noun:
    """Makes a character from ``noun``, ``noun/plural`` or ``noun:he``, with a name other than ``taken``."""
    words, _, he = entry.partition(":")
    noun = words.partition("/")[0]
    he = he or rng.choice(("he", "she"))
    names = [name for name in lists["boys" if he == "he" else "girls"] if name != taken]
    return Noun(noun, noun, rng.choice(names), he)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
