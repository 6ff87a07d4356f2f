"""What a drafter would draw after each path of a draft, and how often it was right so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slipstream.drafters.base import Step
from slipstream.drafters.confidence import Confidence
from slipstream.models.types import History, Token


class Rankings:
    """Corrects the probabilities of ranked tokens by what the target drew, drafted or not."""

    def __init__(self) -> None:
        """Believes the probabilities as they are."""
        self._confidence = Confidence()
        self._at = -1  # length of the history that was drafted for
        self._ranked: dict[tuple[Token, ...], tuple[Sequence[Token], Sequence[float]]] = {}  # by the tokens before them

    def begin(self, history: History) -> None:
        """Starts a draft after ``history``."""
        self._at = len(history.tokens)
        self._ranked.clear()

    def look(
        self, above: tuple[Token, ...], ranked: Sequence[Token], shares: Sequence[float]
    ) -> Iterator[tuple[Token, float]]:
        """Notes the tokens that come next after a path, with their shares; gives them with corrected shares."""
        self._ranked[above] = ranked, shares
        return self.after(above)

    def __contains__(self, above: tuple[Token, ...]) -> bool:
        """Whether the tokens after a path are noted."""
        return above in self._ranked

    def after(self, above: tuple[Token, ...]) -> Iterator[tuple[Token, float]]:
        """The tokens that were noted after a path, with corrected shares."""
        ranked, shares = self._ranked[above]
        return zip(ranked, map(self._confidence.corrected, shares), strict=True)

    def hear(self, history: History, step: Step) -> None:
        """Measures the shares by the step's tokens, whoever drafted it; ``history`` already ends with them."""
        if self._at != len(history.tokens) - len(step.tokens):
            return
        above: tuple[Token, ...] = ()
        for right in step.tokens:
            if above not in self._ranked:
                return
            for token, share in zip(*self._ranked[above], strict=True):
                self._confidence.hear(share, token == right)
            above = (*above, right)
