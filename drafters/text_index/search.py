"""The longest match of a text's end over all segments, and what followed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slipstream.drafters.text_index.segment import Segment, context_key
from slipstream.drafters.text_index.suffix_array import DEPTH
from slipstream.models.types import Token


@dataclass(frozen=True, slots=True)
class Found:
    """What followed the longest match.

    Attributes:
        matched: Length of the match.
        places: How many places match.
        ahead: For some of the places, the ``DEPTH`` tokens that followed, the next one *last*. At -1 the piece had
            ended; what stands before that is of another.
    """

    matched: int = 0
    places: int = 0
    ahead: tuple[tuple[Token, ...], ...] = ()


def search(segments: Iterable[Segment], tail: Sequence[Token], least: int, most: int) -> Found:
    """Finds the longest match, then reads what followed it.

    Args:
        segments: Where to look.
        tail: The text, or its last ``DEPTH`` tokens: more are not looked at.
        least: Fewest tokens of a match.
        most: Most places of which the continuation is read: where more match, they are spread evenly over all.
    """
    recent = tuple(tail[-DEPTH:])
    key = context_key(recent)
    matched, spots = max(least, 1), list[tuple[Segment, int]]()
    for segment in segments:
        at, shared = segment.find(key)
        shared = min(shared, len(recent))  # a short key is filled up with separators
        if shared > matched:
            matched, spots = shared, []
        if shared == matched:
            spots.append((segment, at))
    ranges = [(segment, *segment.matching(key, at, matched)) for segment, at in spots]
    places = sum(high - low for _, low, high in ranges)
    if not places:
        return Found()
    wanted = iter(range(places) if places <= most else [(2 * i + 1) * places // (2 * most) for i in range(most)])
    ahead, passed, place = list[tuple[Token, ...]](), 0, next(wanted, places)
    for segment, low, high in ranges:
        while place < passed + high - low:
            ahead.append(segment.ahead(low + place - passed))
            place = next(wanted, places)
        passed += high - low
    return Found(matched, places, tuple(ahead))
