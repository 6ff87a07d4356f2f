from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as some

from slipstream.models.hub.journal import Ranges

PAIRS = some.lists(some.tuples(some.integers(0, 40), some.integers(0, 40)), max_size=12)


@settings(max_examples=300, deadline=None)
@given(PAIRS, some.integers(0, 40), some.integers(0, 40))
def test_ranges_are_a_set_of_bytes(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    ranges, there = Ranges(), set[int]()
    for first, last in pairs:
        ranges.add(first, last)
        there |= set(range(first, last))
        assert ranges.total == len(there)
    gaps = ranges.missing(start, end)
    assert {place for first, last in gaps for place in range(first, last)} == set(range(start, end)) - there
    assert all(first < last for first, last in gaps) and gaps == sorted(gaps)
    assert set(range(ranges.contiguous())) <= there and ranges.contiguous() not in there
    other = ranges.copy()
    other.add(0, 50)
    assert ranges.total == len(there) and other.missing(0, 50) == []
