"""Joins events, since a screen cannot show thousands a second."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from slipstream.app.engine.draft_trace import joined_traces
from slipstream.app.protocol.events import Divided, Prefilling, Stepped

Event = Prefilling | Stepped


class Throttle:
    """Joins steps that follow each other faster than the given time; passes a later step on at once.

    A model of a few million parameters takes 3,000 steps a second. Reading and showing each of them takes more
    processor time than computing it, on the same cores.
    """

    def __init__(self, emit: Callable[[Event], None], milliseconds: float) -> None:
        """Passes events on to ``emit``, steps at least ``milliseconds`` apart."""
        self._emit, self._seconds = emit, milliseconds / 1e3
        self._held: Stepped | None = None
        self._last = 0.0

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Stepped):
            self._emit(event)
            return
        self._held = joined(self._held, event) if self._held else event
        if perf_counter() - self._last >= self._seconds:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._emit(self._held)
            self._held, self._last = None, perf_counter()


def joined(first: Stepped, second: Stepped) -> Stepped:
    """Joins two steps of a reply into one event: sums, and the later figures."""
    return Stepped(
        request=second.request,
        pieces=first.pieces + second.pieces,
        tokens=first.tokens + second.tokens,
        drafter=second.drafter if second.drafted else first.drafter,
        drafted=first.drafted + second.drafted,
        accepted=first.accepted + second.accepted,
        ms=first.ms + second.ms,
        speed=second.speed,
        expected=first.expected + second.expected,
        choice=second.choice or first.choice,
        watched=joined_traces(first.watched, second.watched),
        divided=_divided(first, second),
        ttft_ms=second.ttft_ms,
    )


def _divided(first: Stepped, second: Stepped) -> Divided | None:
    if first.divided is None and second.divided is None:
        return None
    one, two = first.parts, second.parts
    return Divided(one.reasoning + two.reasoning, one.answer + two.answer, two.under_way)
