"""The events of a race: its start, the progress of both racers, and its result; as values and as JSON."""

from dataclasses import asdict, dataclass
from math import hypot
from typing import Any, Final

from slipstream.app.engine.process.frames import built
from slipstream.app.protocol.requests import Load, Message
from slipstream.app.speed import speedup

PROMPT: Final = "Tell me a story about a lighthouse keeper and her cat."
FRAMES: Final = 20  # maximum frames per second
LEAST_SECONDS: Final = 6.0  # a shorter race is shown in slow motion


@dataclass(frozen=True, slots=True)
class RaceRequest:
    """What the chat asks the process of a race for."""

    load: Load
    drafter: str
    messages: list[Message]  # of the chat, up to the question that both answer; a story is asked for without any


@dataclass(frozen=True, slots=True)
class Racer:
    """The progress of one of the two replies."""

    text: str = ""
    tokens: int = 0
    seconds: float = 0.0  # time of its own steps
    over: bool = False  # whether its reply has ended
    noise: float = 0.0  # relative standard error of ``seconds``, as its steps differ


@dataclass(frozen=True, slots=True)
class RaceFrame:
    """The progress of both replies at one moment."""

    ours: Racer
    plain: Racer

    @property
    def speedup(self) -> float | None:
        """The speed with the drafter divided by that without one; None until both have enough tokens."""
        ours, plain = self.ours, self.plain
        enough = speedup(plain.tokens, plain.seconds, 1.0) is not None
        return speedup(ours.tokens, ours.seconds, plain.seconds / plain.tokens) if enough else None

    @property
    def noise(self) -> float:
        return hypot(self.ours.noise, self.plain.noise)

    @property
    def seconds(self) -> float:
        return max(self.ours.seconds, self.plain.seconds)


@dataclass(frozen=True, slots=True)
class RaceStart:
    """The beginning of a race."""

    model: str
    drafter: str
    prompt: str
    seed: int
    limit: int  # maximum tokens of each reply
    plain_ms: float  # milliseconds of a plain step, approximately
    promise: str  # see ``Loaded.promise``
    earlier: int = 0  # messages of the chat before the prompt

    @property
    def slower(self) -> float:
        seconds = self.limit * self.plain_ms / 1e3
        return max(1.0, LEAST_SECONDS / seconds) if seconds else 1.0


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The result of a race."""

    frame: RaceFrame  # the last one
    stopped: bool  # whether it was stopped before both replies had ended
    differs_at: int | None  # index of the first token at which the texts differ; None without one
    acceptance: float | None  # None if nothing was drafted
    tokens_per_step: float  # tokens a step, with the drafter
    busy: bool = False  # whether other programs seem to have disturbed the steps


RaceEvent = RaceStart | RaceFrame | RaceResult
_KINDS: Final = {"start": RaceStart, "frame": RaceFrame, "result": RaceResult}


def encoded(event: RaceEvent) -> dict[str, Any]:
    (name,) = (name for name, kind in _KINDS.items() if isinstance(event, kind))
    return {name: asdict(event)}


def decoded(found: dict[str, Any]) -> RaceEvent:
    """Reads ``encoded`` back; raises ``LookupError`` or ``ProtocolError`` if it is no event."""
    (name,) = found.keys() & _KINDS.keys() or ("",)
    event: RaceEvent = built(_KINDS[name], found[name])
    return event
