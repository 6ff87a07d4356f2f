"""All drafting methods by name, and whether each serves a given target."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slipstream.drafters import (
    draft_model,
    eagle,
    kangaroo,
    lookahead,
    medusa,
    mtp,
    none,
    prompt_lookup,
    retrieval,
    space,
    token_recycling,
)
from slipstream.drafters.base import Drafter
from slipstream.drafters.chain import Chain
from slipstream.drafters.merge import Merged
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
            medusa.METHOD,
            kangaroo.METHOD,
            space.METHOD,
            prompt_lookup.METHOD,
            lookahead.METHOD,
            token_recycling.METHOD,
            eagle.METHOD,
            mtp.METHOD,
            retrieval.METHOD,
        )
    }
)


IN_ORDER: Final = "+"
"""Joins names to a chain: ``lookup+draft`` drafts with the first of them that is confident."""

TOGETHER: Final = "|"
"""Joins names to a merge, and binds closer: ``lookup|draft`` drafts with both, in one tree."""


def why_not(name: str, parts: Parts) -> str:
    """The reason why a known method, or one of several joined, cannot serve this target; empty if it can."""
    names = parts_of(name)
    reasons = {each: _why_not(each, parts) for each in names}
    if len(names) == 1:
        return reasons[name]
    return "; ".join(f"{each}: {reason}" for each, reason in reasons.items() if reason)


def _why_not(name: str, parts: Parts) -> str:
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


def parts_of(name: str) -> list[str]:
    """The methods that a name joins, in order; of a method, itself."""
    return name.replace(TOGETHER, IN_ORDER).split(IN_ORDER)


def check_name(name: str) -> None:
    """Refuses a name that no method has, and a method that is joined with itself.

    Raises:
        UsageError: Names the known ones.
    """
    names = parts_of(name)
    for each in names:
        if each not in METHODS:
            joined = f" (in {name!r})" if len(names) > 1 else ""
            raise UsageError(
                f"there is no drafter {each!r}{joined}.",
                f"Known drafters: auto, {', '.join(METHODS)}; in order: lookup+draft; together: 'lookup|draft'.",
            )
        if names.count(each) > 1:
            raise UsageError(f"{name!r} names {each!r} twice.", "Each drafter can be joined once.")


def make(name: str, parts: Parts) -> Drafter:
    """Makes a drafter, or several joined.

    Raises:
        UsageError: If a name is unknown, or a method cannot serve this target; says why.
    """
    check_name(name)
    reason = why_not(name, parts)
    if reason:
        usable = ", ".join(other for other in METHODS if not why_not(other, parts))
        raise UsageError(f"drafter {name!r} cannot serve this model: {reason}.", f"Usable here: {usable}.")
    chained = [_together(each.split(TOGETHER), parts) for each in name.split(IN_ORDER)]
    return chained[0] if len(chained) == 1 else Chain(chained)


def _together(names: list[str], parts: Parts) -> Drafter:
    drafters = [METHODS[name].make(parts) for name in names]
    return drafters[0] if len(drafters) == 1 else Merged(drafters, parts.abilities)
