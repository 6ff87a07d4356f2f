"""Drafter ``none``: plain decoding."""

from __future__ import annotations

from typing import Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, ShouldExtend
from slipstream.drafters.resources import Method
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History


class Plain(Drafter):
    """Guesses nothing, so every step is one plain decode."""

    name = "none"
    needs = Needs(leaves=0)

    def draft(self, history: History, should_extend: ShouldExtend, sampler: Sampler) -> Draft:
        return NO_DRAFT


METHOD: Final = Method(Plain.name, lambda _: Plain(), about="no guessing: the model writes alone")
