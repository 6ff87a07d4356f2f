"""How much a text repeats itself: repetitions are what drafters that copy live on."""

from collections.abc import Sequence

from slipstream.models.types import Token

_LENGTH = 4


def repeated_share(tokens: Sequence[Token]) -> float:
    """Share of the tokens that finish a run of four which already stands earlier in the same text."""
    seen: set[tuple[Token, ...]] = set()
    repeated = 0
    for end in range(_LENGTH, len(tokens) + 1):
        run = tuple(tokens[end - _LENGTH : end])
        repeated += run in seen
        seen.add(run)
    return repeated / len(tokens) if tokens else 0.0
