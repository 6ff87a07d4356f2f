"""The drafters that can be asked for: every method, and the autopilot."""

from __future__ import annotations

from slipstream.app.engine.protocol import DrafterOffer
from slipstream.app.engine.requests import AUTO
from slipstream.drafters import registry
from slipstream.drafters.parts import Parts

_ABOUT = "chooses among all of these, step by step, by measure"


def check_drafter(name: str) -> None:
    """Refuses a name that stands for no drafter.

    Raises:
        UsageError: Names the known ones.
    """
    if name != AUTO:
        registry.check_name(name)


def offers(parts: Parts) -> list[DrafterOffer]:
    """All drafters, and whether each serves this target."""
    reasons = {name: registry.why_not(name, parts) for name in registry.METHODS}
    methods = [DrafterOffer(name, not why, why, registry.METHODS[name].about) for name, why in reasons.items()]
    return [DrafterOffer(AUTO, True, about=_ABOUT), *methods]
