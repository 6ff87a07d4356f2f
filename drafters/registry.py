"""All drafting methods by name, and whether each serves a given target."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.drafters import draft_model, lookahead, none, prompt_lookup, token_recycling
from slipstream.drafters.base import Drafter
from slipstream.drafters.none import Plain
from slipstream.drafters.parts import Method, Parts
from slipstream.models.errors import UsageError
from slipstream.models.types import LAST_HIDDEN

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            none.METHOD,
            draft_model.METHOD,
            prompt_lookup.METHOD,
            lookahead.METHOD,
            token_recycling.METHOD,
        )
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
