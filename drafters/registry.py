"""All drafting methods by name, and whether each serves a given target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from slipstream.drafters.base import Drafter, Needs
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.lookahead import Lookahead
from slipstream.drafters.none import Plain
from slipstream.drafters.prompt_lookup import PromptLookup
from slipstream.drafters.token_recycling import TokenRecycling
from slipstream.models.errors import UsageError
from slipstream.models.runtime.target import Target
from slipstream.models.types import LAST_HIDDEN, Abilities


@dataclass(frozen=True, slots=True)
class Parts:
    """What drafters may be made of.

    Attributes:
        abilities: What the target can do.
        draft_model: A draft model of the target's vocabulary, if there is one.
    """

    abilities: Abilities
    draft_model: Target | None = None


def _needs_draft_model(parts: Parts) -> str:
    return "" if parts.draft_model else "it needs a draft model, and this model has none"


def _nothing(_parts: Parts) -> str:
    return ""


def _make_draft_model(parts: Parts) -> Drafter:
    assert parts.draft_model is not None  # lacks() has said so
    return DraftModel(parts.draft_model, parts.abilities.n_vocab)


@dataclass(frozen=True, slots=True)
class Method:
    """A drafting method.

    Attributes:
        needs: What it asks of the target.
        lacks: The part that it misses, in words, or an empty string.
        make: Makes the drafter.
    """

    needs: Needs
    lacks: Callable[[Parts], str]
    make: Callable[[Parts], Drafter]


METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        Plain.name: Method(Plain.needs, _nothing, lambda _: Plain()),
        DraftModel.name: Method(DraftModel.needs, _needs_draft_model, _make_draft_model),
        PromptLookup.name: Method(PromptLookup.needs, _nothing, lambda _: PromptLookup()),
        Lookahead.name: Method(Lookahead.needs, _nothing, lambda parts: Lookahead(parts.abilities)),
        TokenRecycling.name: Method(TokenRecycling.needs, _nothing, lambda parts: TokenRecycling(parts.abilities)),
    }
)


def why_not(name: str, parts: Parts) -> str:
    """The reason why a known method cannot serve this target; empty if it can."""
    method = METHODS[name]
    abilities = parts.abilities
    if name != Plain.name and abilities.max_leaves < method.needs.leaves:
        return (
            "it needs a target that can take back tokens, and this one cannot"
            if not abilities.max_leaves
            else f"its trees have {method.needs.leaves} leaves, and this target takes {abilities.max_leaves}"
        )
    missing = method.needs.hidden - abilities.hidden
    if missing:
        points = ", ".join(
            "the last hidden state" if p == LAST_HIDDEN else f"the input of layer {p}" for p in sorted(missing)
        )
        return f"it needs {points}, which this target does not hand out"
    return method.lacks(parts)


def check_name(name: str) -> None:
    """Refuses a name that no method has.

    Raises:
        UsageError: Names the known ones.
    """
    if name not in METHODS:
        raise UsageError(f"there is no drafter {name!r}.", f"Known drafters: {', '.join(METHODS)}.")


def make(name: str, parts: Parts) -> Drafter:
    """Makes a drafter.

    Raises:
        UsageError: If the name is unknown, or the method cannot serve this target; says why.
    """
    check_name(name)
    reason = why_not(name, parts)
    if reason:
        usable = ", ".join(other for other in METHODS if not why_not(other, parts))
        raise UsageError(f"drafter {name!r} cannot serve this model: {reason}.", f"Usable here: {usable}.")
    return METHODS[name].make(parts)
