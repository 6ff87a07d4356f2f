"""The resources of drafters, and the description of a method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from slipstream.drafters.base import Drafter, Needs
from slipstream.drafters.guard import Guard
from slipstream.drafters.memory import DrafterMemory
from slipstream.drafters.text_index import TextIndex
from slipstream.drafters.vocabulary_mapping import VocabularyMapping
from slipstream.models.gguf.reader import Header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.target import Target
from slipstream.models.types import Abilities

FEATURE_CALLS: Final = ("set_features", "get_features")
LAYER_CALLS: Final = ("set_layer_input", "get_layer_input", *FEATURE_CALLS)
"""llama.cpp functions for heads that read features of the last layer, and for heads that read those of any layer."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Everything that a drafter may be made from."""

    abilities: Abilities  # the target's abilities
    draft_model: Target | None = None  # a draft model, if there is one
    # by method, the file of heads that were trained for this target; already checked
    heads: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    # the target if it runs on llama.cpp, for methods that use its device or read its weights
    llama: LlamaTarget | None = None
    folder: Path | None = None  # folder for files that are derived from the target, kept from one run to the next
    text_index: TextIndex | None = None  # the user's past text, if it is indexed and may be used
    memory: DrafterMemory | None = None  # drafters' knowledge of the target from earlier runs, if it is kept
    header: Header | None = None  # header of the target's file, if it has one
    # maps between the vocabularies of the target and the draft model, if they differ
    vocabulary_mapping: VocabularyMapping | None = None
    # runs the drafters' calls, so that a failing drafter does not fail the reply; without it, drafters raise
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """A drafting method, as the registry lists it."""

    name: str
    make: Callable[[Resources], Drafter]  # makes the drafter if ``lacks`` returned nothing
    # its requirements of every target; a drafter may need more
    needs: Needs = Needs()  # noqa: RUF009 (frozen)
    heads: bool = False  # whether it needs trained heads, and a target on llama.cpp
    train: str = ""  # how to get these heads, appended to the reason why it lacks them
    unfit: Callable[[Resources], str] = lambda _: ""  # what else the method lacks; see ``lacks``
    about: str = ""  # what it does, in one plain line of at most 60 characters, without a full stop
    auto: bool = True  # whether the autopilot may use it: all methods but plain decoding
    # the functions of llama.cpp that it needs beyond the C interface, by their names in ``Symbols``
    calls: tuple[str, ...] = ()

    def lacks(self, resources: Resources) -> str:
        """What the method lacks, worded to follow "does not work with this model:"; empty if it lacks nothing."""
        if self.heads and (self.name not in resources.heads or resources.llama is None):
            return f"it needs {self.name} heads, and this model has none{self.train}"
        return self.unfit(resources)
