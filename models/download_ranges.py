"""A set of byte ranges: what of a file is there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Ranges:
    """Bytes of a file, as few ranges as possible; the end of a range is not part of it."""

    def __init__(self) -> None:
        """Starts empty."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0

    def add(self, start: int, end: int) -> None:
        """Puts a range in; it may touch or overlap what is there."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        gone = sum(self._ends[i] - self._starts[i] for i in range(first, last))
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.total += end - start - gone

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The ranges between two places that are not in it."""
        gaps: list[tuple[int, int]] = []
        index = bisect_right(self._ends, start)
        while start < end:
            if index == len(self._starts) or self._starts[index] >= end:
                gaps.append((start, end))
                break
            if self._starts[index] > start:
                gaps.append((start, self._starts[index]))
            start = self._ends[index]
            index += 1
        return gaps

    def contiguous(self) -> int:
        """How many bytes are there from the first one on without a gap."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    def copy(self) -> Ranges:
        """An equal set of its own."""
        other = Ranges()
        other._starts, other._ends, other.total = self._starts[:], self._ends[:], self.total
        return other
