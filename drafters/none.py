"""Drafter ``none``: plain decoding."""

from __future__ import annotations

from typing import ClassVar

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Worth
from slipstream.drafters.parts import Method
from slipstream.models.sampling import Sampler
from slipstream.models.types import History


class Plain(Drafter):
    """Guesses nothing, so every step is one plain decode."""

    name: ClassVar[str] = "none"
    needs: ClassVar[Needs] = Needs(leaves=0)

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Returns the empty draft."""
        return NO_DRAFT


METHOD = Method(Plain.name, lambda _: Plain(), about="plain decoding, nothing is guessed")
