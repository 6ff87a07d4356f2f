"""What drafters are made from, and what a method states about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.drafters.base import Drafter, Needs
from slipstream.drafters.guard import Guard
from slipstream.drafters.memory import Memory
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.vocabulary_mapping import VocabularyMapping
from slipstream.models.gguf.reader import Header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.target import Target
from slipstream.models.types import Abilities


@dataclass(frozen=True, slots=True)
class Resources:
    """What a drafter may be made from."""

    abilities: Abilities  # what the target can do
    draft_model: Target | None = None  # a draft model, if there is one
    # method to the file that was trained for this target; already checked
    heads: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    # the target where it is llama.cpp's, for methods that run on its device or read its weights
    llama: LlamaTarget | None = None
    folder: Path | None = None  # where files that are derived from the target may be kept from one run to the next
    text_index: TextIndex | None = None  # the owner's past text, if it is indexed and may be used
    memory: Memory | None = None  # what drafters learned of the target in earlier runs, if it is kept
    header: Header | None = None  # of the target's file, where it has one
    # between the target's vocabulary and the draft model's where they differ
    vocabulary_mapping: VocabularyMapping | None = None
    # runs the calls of the drafters, so that a failing one fails no reply; None lets them raise
    guard: Guard | None = None


FEATURE_CALLS: Final = ("set_features", "get_features")
LAYER_CALLS: Final = ("set_layer_input", "get_layer_input", *FEATURE_CALLS)
"""What heads on the target's features need of llama.cpp: of the last layer alone, and of any layer."""


def needs_nothing(_resources: Resources) -> str:
    """Of a method that is complete by itself."""
    return ""


def needs_heads(name: str) -> Callable[[Resources], str]:
    """Of a method that needs trained heads and a target on llama.cpp."""

    def lacks(resources: Resources) -> str:
        if name not in resources.heads or resources.llama is None:
            return f"it needs {name} heads, and this model has none"
        return ""

    return lacks


@dataclass(frozen=True, slots=True)
class Method:
    """A drafting method, as the registry lists it.

    Attributes:
        needs: What it needs of every target; a drafter may need more.
        calls: The calls of llama.cpp that it needs beyond its C interface, by their names in ``Symbols``.
    """

    name: str
    make: Callable[[Resources], Drafter]  # makes the drafter of resources that ``lacks`` nothing
    needs: Needs = Needs()  # noqa: RUF009 (frozen)
    # what is missing for it, in words that follow "cannot serve this model:", or an empty string
    lacks: Callable[[Resources], str] = needs_nothing
    about: str = ""  # what it does, in one plain line of at most 60 characters, without a full stop
    auto: bool = False  # whether the autopilot may use it
    calls: tuple[str, ...] = ()
