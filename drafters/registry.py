"""All drafting methods by name, and whether each serves a given target."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from slipstream.drafters import (
    block_drafter,
    draft_model,
    feature_drafter,
    kangaroo,
    lookahead,
    medusa,
    prompt_lookup,
    recycle,
    retrieval,
    space,
)
from slipstream.drafters.autopilot import AUTO
from slipstream.drafters.base import Drafter, Plain
from slipstream.drafters.combine import Continued, in_order, together
from slipstream.drafters.resources import Method, Resources
from slipstream.models.errors import SlipstreamError, UsageError, did_you_mean
from slipstream.models.llama.hidden import SYMBOLS
from slipstream.models.types import LAST_HIDDEN

IN_ORDER: Final = "+"  # chains drafters: in ``lookup+draft`` the first confident one drafts
TOGETHER: Final = "|"  # merges drafts, and binds tighter: in ``lookup|draft`` both draft, into one tree
BEHIND: Final = ":"  # binds tightest: in ``draft:lookup`` copies go on behind the chain of ``draft``
_PLAIN: Final = Method(Plain.name, lambda _: Plain(), about="no guessing: the model writes alone", auto=False)
METHODS: Final[Mapping[str, Method]] = MappingProxyType(  # by name, in display order
    {
        method.name: method
        for method in (
            *(_PLAIN, draft_model.METHOD, medusa.METHOD, kangaroo.METHOD, space.METHOD, prompt_lookup.METHOD),
            *(lookahead.METHOD, recycle.METHOD, feature_drafter.EAGLE3, feature_drafter.MTP),
            *(block_drafter.DFLASH, block_drafter.DSPARK, retrieval.METHOD),
        )
    }
)


def why_not(name: str, resources: Resources) -> str:
    """Why the methods in a name, all of them known, cannot serve this target; empty if they can."""
    names = parts_of(name)
    reasons = {each: _failed(resources).get(each) or _why_not(each, resources) for each in names}
    if len(names) == 1:
        return reasons[name]
    return "; ".join(f"{each}: {reason}" for each, reason in reasons.items() if reason)


def _why_not(name: str, resources: Resources) -> str:
    method = METHODS[name]
    abilities = resources.abilities
    if lacking := SYMBOLS.lacking(*method.calls):
        return lacking
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
    try:
        return method.lacks(resources)
    except SlipstreamError as error:
        if resources.guard:  # its file was found before, so the drafter has failed
            resources.guard.fail(name, error)
        return error.title.rstrip(".")


def parts_of(name: str) -> list[str]:
    return name.replace(TOGETHER, IN_ORDER).replace(BEHIND, IN_ORDER).split(IN_ORDER)


def check_name(name: str) -> None:
    names = parts_of(name)
    for each in names:
        if each not in METHODS:
            raise _unknown(each, name)
        if names.count(each) > 1:
            raise UsageError(f"{name!r} names {each!r} twice.", "Each drafter can be joined once.")
    for joined in name.replace(TOGETHER, IN_ORDER).split(IN_ORDER):
        first, *behind = joined.split(BEHIND)
        if behind not in ([], [prompt_lookup.PromptLookup.name]) or (behind and first == Plain.name):
            raise UsageError(
                f"{joined!r}: only lookup copies on behind another drafter's guesses.", "An example: draft:lookup."
            )


def _unknown(each: str, name: str) -> UsageError:
    joined = f" (in {name!r})" if each != name else ""
    joins = "one after the other: lookup+draft; merged: 'lookup|draft'; copies behind guesses: draft:lookup"
    known = f"Drafters: auto, {', '.join(METHODS)}; {joins}."
    if not each.strip():
        where = f"{name!r} lacks the name of a drafter" if joined else "a drafter without a name was asked for"
        return UsageError(f"{where}.", known)
    if each == AUTO:
        return UsageError(
            f"auto cannot be joined with others{joined}: it chooses among all of them.",
            "Use auto alone, or leave it out.",
        )
    meant = did_you_mean(each, [AUTO, *METHODS])
    return UsageError(f"there is no drafter {each!r}{joined}.", f"{meant} {known}".lstrip())


def make(name: str, resources: Resources) -> Drafter:
    """Makes a drafter, or several joined; a ``UsageError`` says why one is unknown or cannot serve this target.

    If a method serves this target but making its drafter fails, ``resources.guard`` records the failure.
    """
    check_name(name)
    reason = why_not(name, resources)
    if reason and not _failed(resources).keys() & set(parts_of(name)):
        usable = ", ".join(other for other in METHODS if not why_not(other, resources))
        raise UsageError(f"drafter {name!r} does not work with this model: {reason}.", f"Usable here: {usable}.")
    chained = [_together(each.split(TOGETHER), resources) for each in name.split(IN_ORDER)]
    return chained[0] if len(chained) == 1 else _guarded(name, resources, lambda: in_order(chained))


def _together(names: list[str], resources: Resources) -> Drafter:
    drafters = [_continued(name, resources) for name in names]
    return drafters[0] if len(drafters) == 1 else together(drafters, resources.abilities)


def _continued(name: str, resources: Resources) -> Drafter:
    drafters = [_guarded(each, resources, partial(METHODS[each].make, resources)) for each in name.split(BEHIND)]
    if len(drafters) == 1:
        return drafters[0]
    return _guarded(name, resources, lambda: Continued(drafters[0], drafters[1], alone=True))


def _guarded(name: str, resources: Resources, make: Callable[[], Drafter]) -> Drafter:
    guard = resources.guard
    return guard.made(name, make, resources.abilities) if guard and name != Plain.name else make()


def _failed(resources: Resources) -> Mapping[str, str]:
    return resources.guard.failed if resources.guard else {}
