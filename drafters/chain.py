"""Several drafters in order: the first that is confident drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Needs, Step, Worth
from slipstream.models.sampling import Sampler
from slipstream.models.types import Floats, History, Token

_CONFIDENT: Final = 0.5
"""Least probability of a draft's best first token: more likely right than wrong."""


class Several(Drafter):
    """Drafters that follow one text together: each hears all that happens, whoever drafted."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """Takes over some drafters, the preferred one first; what they need is needed of one target."""
        self._drafters = tuple(drafters)
        needs = [drafter.needs for drafter in self._drafters]
        self.needs = Needs(  # type: ignore[misc]  # of the parts, not of the class
            frozenset[int]().union(*(each.hidden for each in needs)), max(each.leaves for each in needs)
        )

    def begin(self, history: History) -> None:
        """Starts a reply."""
        for drafter in self._drafters:
            drafter.begin(history)

    def prefilled(self, tokens: Sequence[Token], hidden: Mapping[int, Floats]) -> None:
        """Hears the hidden states of prompt tokens that the target has just read."""
        for drafter in self._drafters:
            drafter.prefilled(tokens, hidden)

    def observe(self, history: History, step: Step) -> None:
        """Hears a step."""
        for drafter in self._drafters:
            drafter.observe(history, step)

    def rewind(self, length: int) -> None:
        """Forgets every token from index ``length`` of the history on."""
        for drafter in self._drafters:
            drafter.rewind(length)

    def close(self) -> None:
        """Frees what they hold."""
        for drafter in self._drafters:
            drafter.close()


class Chain(Several):
    """Asks one drafter after the other, and drafts with the first that is confident.

    Where none is, the draft with the most probable first token is taken; a draft of probes alone comes after every
    other, but before none at all: its drafter learns from it.
    """

    name: ClassVar[str] = "chain"

    def draft(self, history: History, worth: Worth, sampler: Sampler) -> Draft:
        """Takes one draft whole, its probes too."""
        best, most = NO_DRAFT, -1.0
        for drafter in self._drafters:
            draft = drafter.draft(history, worth, sampler)
            first = draft.probs[0] if draft.tree.drafted else 0.0
            if first >= _CONFIDENT:
                return draft
            if len(draft.tree) and first > most:
                best, most = draft, first
        return best
