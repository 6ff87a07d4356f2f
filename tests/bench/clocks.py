"""A target and a sampler that time themselves, and the arithmetic of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Floats, History, Token


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over all rounds."""

    median: float  # the figure to quote
    low: float  # the smallest
    high: float  # the largest

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Sums up one value a round; there must be one at least."""
        return Spread(median(values), min(values), max(values))

    def text(self, digits: int, unit: str = "") -> str:
        """The median, and the range in brackets."""
        return f"{self.median:.{digits}f}{unit} ({self.low:.{digits}f}..{self.high:.{digits}f})"


class TimedTarget(LlamaTarget):
    """A target that adds up the time of its evaluations inside ``llama_decode``."""

    decoding: float = 0.0  # seconds so far
    threads: int = 0  # threads that were chosen; 0 until then

    def use_threads(self, count: int) -> None:
        """Sets the number of threads of every pass from now on."""
        super().use_threads(count)
        self.threads = count

    def bare(self, tokens: Sequence[Token]) -> float:
        """Decodes tokens one by one with nothing around ``llama_decode``; the cache is as before afterwards.

        Returns:
            Seconds.
        """
        start = self.cached
        batch = C.llama_batch_init(1, 0, 1)
        batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, 1
        began = perf_counter()
        for at, token in enumerate(tokens):
            batch.token[0], batch.pos[0] = token, start + at
            if C.llama_decode(self.context, batch):
                raise SlipstreamError("the model could not be evaluated in the benchmark.")
            C.llama_get_logits(self.context)  # on a GPU, this waits for the result
        seconds = perf_counter() - began
        C.llama_batch_free(batch)
        self.rewind(start)
        return seconds

    def _decode(self, rows: int) -> None:
        began = perf_counter()
        super()._decode(rows)
        C.llama_synchronize(self.context)  # on a GPU, llama_decode only starts the work
        self.decoding += perf_counter() - began


@dataclass(slots=True)
class Clock:
    """Time spent in calls."""

    seconds: float = 0.0
    calls: int = 0


@dataclass(frozen=True)
class TimedSampler(Sampler):
    """A sampler that adds up the time of its draws."""

    clock: Clock = field(default_factory=Clock, compare=False)  # seconds and draws so far

    def pick(self, logits: Floats, history: History, ahead: Sequence[Token] = ()) -> Token:
        """Draws a token."""
        began = perf_counter()
        token = super().pick(logits, history, ahead)
        self.clock.seconds += perf_counter() - began
        self.clock.calls += 1
        return token
