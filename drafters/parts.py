"""What drafters are made of, and how a method says whether it can serve a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from slipstream.drafters.base import Drafter, Needs
from slipstream.drafters.memory import Memory
from slipstream.drafters.text_index.index import TextIndex
from slipstream.drafters.translation import Translation
from slipstream.models.gguf import Header
from slipstream.models.runtime.llama import LlamaTarget
from slipstream.models.runtime.target import Target
from slipstream.models.types import Abilities


@dataclass(frozen=True, slots=True)
class Parts:
    """What drafters may be made of.

    Attributes:
        abilities: What the target can do.
        draft_model: A draft model, if there is one.
        heads: Method to the file that was trained for this target; whoever made the list has checked that it was.
        llama: The target where it is llama.cpp's, for methods that run on its device or read its weights.
        folder: Where files that are derived from the target may be kept from one run to the next.
        text_index: The owner's past text, if it is indexed and may be used.
        memory: What drafters learnt of the target in earlier runs, if it is kept.
        header: Of the target's file, where it has one.
        translation: Between the target's vocabulary and the draft model's where they differ.
    """

    abilities: Abilities
    draft_model: Target | None = None
    heads: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    llama: LlamaTarget | None = None
    folder: Path | None = None
    text_index: TextIndex | None = None
    memory: Memory | None = None
    header: Header | None = None
    translation: Translation | None = None


def needs_nothing(_parts: Parts) -> str:
    """Of a method that is complete by itself."""
    return ""


def needs_heads(name: str) -> Callable[[Parts], str]:
    """Of a method that needs trained heads and a target on llama.cpp."""

    def lacks(parts: Parts) -> str:
        if name not in parts.heads or parts.llama is None:
            return f"it needs {name} heads, and this model has none"
        return ""

    return lacks


@dataclass(frozen=True, slots=True)
class Method:
    """A drafting method, as the registry lists it.

    Attributes:
        name: What it is called.
        make: Makes the drafter of parts that ``lacks`` nothing.
        needs: What it asks of every target; a drafter may ask for more.
        lacks: The part that it misses, in words that follow "cannot serve this model:", or an empty string.
        about: What it does, in one plain line of at most 60 characters, without a full stop.
    """

    name: str
    make: Callable[[Parts], Drafter]
    needs: Needs = Needs()  # noqa: RUF009 (frozen)
    lacks: Callable[[Parts], str] = needs_nothing
    about: str = ""
