"""Decides when a reply is over, and which drafts a fixed drafter may make before that."""

import codecs
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Final, Literal

from slipstream.app.chats.reasoning import Thinking
from slipstream.drafters.base import Step
from slipstream.drafters.calibration import Ratio
from slipstream.models.errors import UsageError
from slipstream.models.types import Token

_WRONG: Final = 24  # a drafter that is right once in 5 drafts gives as many wrong ones in a row once in 200 times
_TRIAL: Final = 4  # drafts of a trial after a silence; methods with probes draft their first token in the second one
_PRICES: Final = (0.1, 0.5)  # least and most probability that a path of a fixed drafter must have
_DECAY, _NEW = 0.96, 0.1  # of the speed and of the price: what the latest 17 and 7 steps showed counts half
_PAUSES: Final = (64, 1024)  # steps of the first and of the longest silence; each failed trial doubles them
Reason = Literal["", "stop", "length", "context"]


class StopRules:
    """Decides when a reply is over. Its state depends on committed tokens alone, so a rejected draft needs no undo.

    ``reason`` is why it is over, or empty; a stop string, as bytes in ``stops``, may be spread over several tokens.
    """

    def __init__(
        self,
        ends: frozenset[Token],
        room: int,
        max_tokens: int,
        stops: Sequence[str],
        piece: Callable[[Token], bytes],
        *,
        marks: Sequence[str] = (),
        thinking: Thinking | None = None,
    ) -> None:
        """Keeps the rules: ``room`` tokens still fit the context; ``max_tokens`` of 0 is no limit.

        ``stops`` end the answer, and mean nothing in the reasoning; ``marks`` end the reply wherever they stand. The
        reply begins where ``thinking`` is; without it, all of it is the answer.
        """
        if max_tokens < 0:
            raise UsageError(f"max-tokens is {max_tokens}; it must be 0 (no limit) or more.", "")
        if not all(stops):
            raise UsageError("a stop string is empty.", "Leave it out, or give it at least one character.")
        self.reason: Reason = ""
        try:
            self.stops = tuple(stop.encode() for stop in stops)
        except UnicodeEncodeError:
            raise UsageError("a stop string is not UTF-8.", "Write it in UTF-8, or leave it out.") from None
        self._ends, self._room, self._limit, self._piece = ends, room, max_tokens, piece
        self._count = 0
        self._marks = tuple(mark.encode() for mark in marks)
        self._thinking, self._waiting = thinking or Thinking.none(), b""  # with the bytes of an incomplete character
        self._tail = self._answer = b""  # ends of the reply and of its answer, shorter than the longest string

    def over(self, tokens: Sequence[Token]) -> bool:
        """Whether the reply would be over after ``tokens``, without committing them."""
        return bool(self._verdict(tokens))

    def left(self) -> int:
        room = self._room - self._count
        return min(room, self._limit - self._count) if self._limit else room

    def commit(self, tokens: Sequence[Token]) -> None:
        self.reason = self._verdict(tokens)
        self._count += len(tokens)
        if self.stops or self._marks:
            raw = b"".join(map(self._piece, tokens))
            self._thinking, self._waiting, answer = self._after(raw)
            self._answer, self._tail = _end(self._answer + answer, self.stops), _end(self._tail + raw, self._marks)

    def _verdict(self, tokens: Sequence[Token]) -> Reason:
        if tokens[-1] in self._ends:
            return "stop"
        if self.stops or self._marks:
            raw = b"".join(map(self._piece, tokens))
            joined, answer = self._tail + raw, self._answer + self._after(raw)[2]
            if any(stop in answer for stop in self.stops) or any(mark in joined for mark in self._marks):
                return "stop"
        count = self._count + len(tokens)
        if self._limit and count >= self._limit:
            return "length"
        return "context" if count >= self._room else ""

    def _after(self, raw: bytes) -> tuple[Thinking, bytes, bytes]:
        """The state after more bytes, the bytes of an incomplete character, and those bytes that are the answer."""
        if self._thinking.over or not self.stops:
            return self._thinking, b"", raw
        thinking, decoder = copy(self._thinking), codecs.getincrementaldecoder("utf-8")("replace")
        answer = thinking.feed(decoder.decode(self._waiting + raw))[1]
        waiting = decoder.getstate()[0]
        return thinking, waiting, answer.encode() + waiting if thinking.over else b""


def _end(text: bytes, strings: Sequence[bytes]) -> bytes:
    """The end of a text in which one of the strings may begin."""
    longest = max(map(len, strings), default=1) - 1
    return text[-longest:] if longest else b""


@dataclass(slots=True)
class FixedRecord:
    """What is known of a drafter that was chosen by name; it lasts from reply to reply, while the model is loaded.

    A drafter that is never right falls silent, and tries again at growing intervals.
    """

    wrong: int = 0  # its latest drafts without an accepted token
    steps: int = 0  # steps until it may draft again
    pause: int = _PAUSES[0]  # steps of the next silence
    new: bool = False  # whether a silence has begun that was not reported yet
    price: float = _PRICES[1]  # of a node: the tokens that the time for drafting and checking it yields otherwise
    speed: Ratio[float] = field(default_factory=lambda: Ratio(_DECAY, 0.0, 0.0))  # tokens and milliseconds of steps

    @property
    def reason(self) -> str:
        """Why it is silent, as the end of a sentence; empty until the first silence, and once a trial was right."""
        return f"its last {self.wrong} drafts were wrong" if self.wrong >= _WRONG else ""

    def add(self, step: Step, plain_ms: float) -> None:
        drafted, times = step.draft.tree.tokens, step.timings
        milliseconds = times.draft + times.evaluate
        if plain_ms and milliseconds:
            self.speed.add(len(step.tokens), milliseconds)
            if drafted:
                price = self.speed.value() * (milliseconds - plain_ms) / len(drafted)
                self.price += _NEW * (min(max(price, _PRICES[0]), _PRICES[1]) - self.price)
        if self.steps:
            self.steps -= 1
        elif step.path:
            self.wrong, self.pause = 0, _PAUSES[0]
        elif drafted and not step.ended:
            self.wrong += 1
            if self.wrong >= _WRONG and (self.wrong - _WRONG) % _TRIAL == 0:
                self.new = self.new or self.wrong == _WRONG
                self.steps, self.pause = self.pause, min(2 * self.pause, _PAUSES[1])


@dataclass(slots=True)
class FixedBudget:
    """A ``should_extend`` for a drafter that was chosen by name: it drafts whether or not that gains."""

    rules: StopRules  # decides when the reply is over; a draft past its end is wasted
    rows: int = 8  # maximum depth of a draft
    least: float = _PRICES[1]  # minimum probability of a drafted path; less where nodes cost less
    # one plain step per this many steps, so that the speed of plain decoding stays measured
    probe_every: int = 64
    # the interval while that speed is unknown; used in the first ``probe_every`` steps only, since the speed may stay
    # unknown on a busy machine
    search_every: int = 8
    plain_ms: Callable[[], float | None] = lambda: 0.0  # of a plain step; None: not known yet; 0: not needed
    step: int = 0  # steps so far
    record: FixedRecord = field(default_factory=FixedRecord)

    def add(self, step: Step) -> None:
        """Counts a step; the caller of the loop adds each one."""
        self.step += 1
        self.record.add(step, self.plain_ms() or 0.0)

    def __call__(self, probability: float, depth: int) -> bool:
        if self.record.steps or self.step % self.probe_every == self.probe_every // 8:
            return False
        searches = self.step < self.probe_every and self.step % self.search_every == self.search_every // 2
        if searches and self.plain_ms() is None:
            return False
        least = min(self.least, self.record.price)
        return probability >= least and depth <= min(self.rows, self.rules.left() - 1)


@dataclass(slots=True)
class WithinReply:
    """A ``should_extend`` that checks only the end of the reply, for a drafter that limits its own drafts."""

    rules: StopRules  # decides when the reply is over

    def __call__(self, probability: float, depth: int) -> bool:
        return depth < self.rules.left()
