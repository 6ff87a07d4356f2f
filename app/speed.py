"""The speed of a reply: one formula and one set of figures for the screen, the commands and the benchmark."""

from dataclasses import dataclass
from typing import Final, Literal

LEAST_TOKENS: Final = 30  # with fewer tokens there is no speed-up: single steps would dominate it
LEAST_OF_CHATS: Final = 64  # number of such tokens from which the speed-up of a drafter in chats is listed
Verdict = Literal["gain", "loss", "even"]
GAIN: Final = 1.05  # from this ratio on, a reply counts as faster
LOSS: Final = 0.95  # below this ratio, it counts as slower


def speedup(tokens: float, seconds: float, plain_seconds: float | None) -> float | None:
    """The time of these tokens by plain decoding, divided by the time that they took.

    Args:
        plain_seconds: Seconds a token of plain decoding, measured on this machine at about the same time and length of
            text; without it, and below ``LEAST_TOKENS``, there is no ratio.
    """
    if plain_seconds is None or tokens < LEAST_TOKENS or seconds <= 0:
        return None
    return tokens * plain_seconds / seconds


def times(ratio: float | None) -> str:
    """A speed-up: "1.9x"."""
    if ratio is None:
        return "–"
    return f"{ratio:.1f}x" if ratio >= 0.1 else f"{ratio:.2f}x"


def judged(ratio: float, noise: float = 0.0) -> Verdict:
    """Whether a speed-up is a gain; one within twice its relative standard error ``noise`` is even."""
    return "gain" if ratio >= max(GAIN, 1 + 2 * noise) else "loss" if ratio < min(LOSS, 1 - 2 * noise) else "even"


def compared(ratio: float, noise: float = 0.0) -> str:
    """A speed-up in words: "1.8x faster", "same speed", "0.8x as fast"."""
    words = {"gain": f"{times(ratio)} faster", "loss": f"{times(ratio)} as fast", "even": "same speed"}
    return words[judged(ratio, noise)]


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of a reply so far."""

    tok_per_s: float = 0.0  # emitted tokens a second of wall time over all steps, without prefill
    acceptance: float | None = None  # accepted tokens over the depths of the drafts; None before the first draft
    tokens_per_step: float = 0.0
    # the baseline: tokens a second of plain decoding now, at this length of text; None while it is being measured
    plain_tok_per_s: float | None = None
    drafted: int = 0  # tokens drafted (depths of the drafts)
    accepted: int = 0  # drafted tokens that the target accepted
    steps: int = 0
    tokens: int = 0
    earlier: int = 0  # tokens that an earlier process wrote; no figure includes their time
    thought: int = 0  # tokens of the reasoning, see ``slipstream.app.chats.reasoning``
    thought_ms: float = 0.0  # milliseconds of the reasoning
    busy: bool = False  # whether other programs used much of the processor
    noise: float = 0.0  # relative standard error of the baseline
    unsteady_tok_per_s: float | None = None  # the baseline where its steps differ too much for a ratio, else None

    @property
    def speedup(self) -> float | None:
        return speedup(self.timed, self.seconds, 1 / self.plain_tok_per_s if self.plain_tok_per_s else None)

    @property
    def gain(self) -> float | None:
        """``speedup`` of a reply in which something was drafted; None for any other."""
        return self.speedup if self.drafted else None

    @property
    def saved_seconds(self) -> float | None:
        """Seconds saved over plain decoding, negative for a loss; None without a ratio."""
        ratio = self.speedup
        return None if ratio is None else (ratio - 1) * self.seconds

    @property
    def timed(self) -> int:
        return self.tokens - self.earlier

    @property
    def seconds(self) -> float:
        return self.timed / self.tok_per_s if self.tok_per_s else 0.0
