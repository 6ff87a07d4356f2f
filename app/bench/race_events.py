"""The events of a race: its start, the progress of both racers, and its result; as values and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from slipstream.app.speed import speedup

PROMPT: Final = "Tell me a story about a lighthouse keeper and her cat."
FRAMES: Final = 20  # maximum frames per second
LEAST_SECONDS: Final = 6.0  # a shorter race is shown in slow motion


@dataclass(frozen=True, slots=True)
class Racer:
    """The progress of one of the two replies."""

    text: str = ""
    tokens: int = 0
    seconds: float = 0.0  # time of its own steps
    over: bool = False  # whether its reply has ended


@dataclass(frozen=True, slots=True)
class Frame:
    """The progress of both replies at one moment."""

    ours: Racer
    plain: Racer

    @property
    def speedup(self) -> float | None:
        """The speed with the drafter divided by that without one; None until both have enough tokens."""
        return _ratio(self.ours, self.plain)

    @property
    def seconds(self) -> float:
        """The later of the two clocks."""
        return max(self.ours.seconds, self.plain.seconds)


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a race."""

    model: str
    drafter: str
    prompt: str
    seed: int
    limit: int  # maximum tokens of each reply
    plain_ms: float  # milliseconds of a plain step, approximately
    promise: str  # see ``Loaded.promise``
    widened: str = ""  # an inflated model's description; empty for other models
    warm_up: int = 0  # tokens that the drafter wrote in the warm-up

    @property
    def slower(self) -> float:
        """The factor of slow motion, 1 or more."""
        seconds = self.limit * self.plain_ms / 1e3
        return max(1.0, LEAST_SECONDS / seconds) if seconds else 1.0


@dataclass(frozen=True, slots=True)
class Finish:
    """The result of a race."""

    frame: Frame  # the last one
    stopped: bool  # whether it was stopped before both replies had ended
    differs_at: int | None  # index of the first token at which the texts differ; None without one
    acceptance: float | None  # None if nothing was drafted
    tokens_per_step: float  # tokens a step, with the drafter
    busy: bool = False  # whether other programs seem to have disturbed the steps

    def figures(self) -> dict[str, Any]:
        def racer(of: Racer) -> dict[str, Any]:
            rate = round(of.tokens / of.seconds, 4) if of.seconds else None
            return {"tokens": of.tokens, "seconds": round(of.seconds, 6), "tok_per_s": rate, "text": of.text}

        ratio = self.frame.speedup
        return {
            "done": "stopped" if self.stopped else "finished",
            "with": racer(self.frame.ours),
            "without": racer(self.frame.plain),
            "speedup": None if ratio is None else round(ratio, 4),
            "acceptance": None if self.acceptance is None else round(self.acceptance, 4),
            "tokens_per_step": round(self.tokens_per_step, 4),
            "equal_texts": self.differs_at is None,
            "differs_at": self.differs_at,
            "busy": self.busy,
        }


def _ratio(ours: Racer, plain: Racer) -> float | None:
    enough = speedup(plain.tokens, plain.seconds, 1.0) is not None
    return speedup(ours.tokens, ours.seconds, plain.seconds / plain.tokens) if enough else None


Event = Start | Frame | Finish


def encoded(event: Event) -> dict[str, Any]:
    if isinstance(event, Start):
        return {"race": asdict(event)}
    if isinstance(event, Frame):
        return {"with": asdict(event.ours), "without": asdict(event.plain)}
    return event.figures()


def decoded(found: dict[str, Any]) -> Event:
    """Reads ``encoded`` back.

    Raises:
        LookupError: If a field is missing.
        TypeError: If the fields do not match.
    """
    if "race" in found:
        return Start(**found["race"])
    racers = [
        Racer(found[name]["text"], found[name]["tokens"], found[name]["seconds"], found[name].get("over", True))
        for name in ("with", "without")
    ]
    frame = Frame(*racers)
    if "done" not in found:
        return frame
    stopped = found["done"] == "stopped"
    shares = found["acceptance"], found["tokens_per_step"]
    return Finish(frame, stopped, found["differs_at"], *shares, found.get("busy", False))
