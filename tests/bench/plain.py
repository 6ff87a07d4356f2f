"""Part ``plain``: decoding through our loop against a loop with nothing around ``llama_decode``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

from tests.bench.clocks import Spread, TimedTarget

from slipstream.app.bench.report import table
from slipstream.app.engine.calibrate import Threads
from slipstream.app.engine.loop import generate
from slipstream.app.engine.stopping import StopRules
from slipstream.drafters.base import Drafter, Plain, Step
from slipstream.models.llama.library import physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """Plain decoding of one model."""

    model: str  # its name
    file_mb: float  # size of its file in MB
    threads: int  # threads of a pass
    steps: int  # steps a round
    rounds: int  # rounds
    bare_ms: Spread  # milliseconds a step of the bare loop, no token chosen
    greedy_ratio: Spread  # speed of our loop at temperature 0 over the bare loop's, round by round; 1 is as fast
    sampled_ratio: Spread  # the same at temperature 0.8 with the default truncations
    greedy_added_us: Spread  # microseconds that our loop adds to a step at temperature 0
    sampled_added_us: Spread  # the same at temperature 0.8


@contextmanager
def opened(path: Path, options: ContextOptions) -> Iterator[TimedTarget]:
    """Loads a model, opens a context on it, chooses threads as the engine does, and frees both at the end."""
    model = LlamaModel(path)
    try:
        target = TimedTarget(model, options)
        try:
            if options.threads:
                target.use_threads(options.threads)
            else:
                Threads(target, [], physical_cores())
            yield target
        finally:
            target.close()
    finally:
        model.close()


def ordinary(target: TimedTarget, count: int) -> list[Token]:
    """A prompt of ``count`` tokens that does not repeat itself soon."""
    return [(at * 7919 + 4099) % target.abilities.n_vocab for at in range(count)]


@dataclass(frozen=True, slots=True)
class LoopRun:
    """Some steps of the real loop."""

    steps: list[Step]  # the steps
    text: list[Token]  # the tokens they emitted
    seconds: float  # time of the loop
    decoding: float  # seconds of it inside ``llama_decode``


def run_loop(target: TimedTarget, drafter: Drafter, sampler: Sampler, prompt: list[Token], steps: int) -> LoopRun:
    """Goes back to the prompt, all but its last token in the cache, and takes ``steps`` steps of the real loop."""
    target.prefill(prompt[:-1])
    history = History(list(prompt))
    rules = StopRules(frozenset(), target.abilities.n_ctx - len(prompt), 0, (), lambda _: b"")
    drafter.begin(history)
    loop = generate(target, drafter, sampler, history, lambda _probability, _depth: True, rules, lambda: False)
    before, began = target.decoding, perf_counter()
    taken = list(islice(loop, steps))
    seconds = perf_counter() - began
    return LoopRun(taken, history.tokens[len(prompt) :], seconds, target.decoding - before)


def compare_with_bare(
    name: str, file_bytes: int, target: TimedTarget, start: int, steps: int, rounds: int, tell: Callable[[str], None]
) -> PlainFigures:
    """Runs the bare loop and ours in turn, from the same cache, a warm-up round first.

    Args:
        name: The model's name.
        file_bytes: Size of its file.
        start: Tokens of the prompt.
        steps: Steps a round.
        rounds: Rounds that count.
        tell: Hears how far it is.
    """
    prompt = ordinary(target, start)
    fed = ordinary(target, start + steps)[start - 1 : start - 1 + steps]
    samplers = (Sampler(temperature=0), Sampler(temperature=0.8, seed=1))

    def bare() -> float:
        target.prefill(prompt[:-1])
        return target.bare(fed)

    def ours(sampler: Sampler) -> float:
        return run_loop(target, Plain(), sampler, prompt, steps).seconds

    loops = (bare, lambda: ours(samplers[0]), lambda: ours(samplers[1]))
    seconds: list[list[float]] = [[], [], []]
    for turn in range(rounds + 1):
        tell(f"plain, {name}: round {turn} of {rounds}")
        for at in range(3):
            which = (turn + at) % 3  # nobody is always first
            took = loops[which]()
            if turn:
                seconds[which].append(took)
    base, greedy, sampled = seconds
    return PlainFigures(
        model=name,
        file_mb=file_bytes / 1e6,
        threads=target.threads,
        steps=steps,
        rounds=rounds,
        bare_ms=Spread.of([1e3 * b / steps for b in base]),
        greedy_ratio=Spread.of([b / g for b, g in zip(base, greedy, strict=True)]),
        sampled_ratio=Spread.of([b / s for b, s in zip(base, sampled, strict=True)]),
        greedy_added_us=Spread.of([1e6 * (g - b) / steps for b, g in zip(base, greedy, strict=True)]),
        sampled_added_us=Spread.of([1e6 * (s - b) / steps for b, s in zip(base, sampled, strict=True)]),
    )


def plain_text(rows: Sequence[PlainFigures]) -> str:
    """Lays the figures out."""
    return table(
        "plain: our loop against a bare llama_decode loop (speed ratio; aim: 0.95 or more where a step takes 10 ms)",
        ("model", "MB", "threads", "bare ms/step", "ratio, T 0", "ratio, T 0.8", "added us, T 0", "added us, T 0.8"),
        [
            (
                row.model,
                f"{row.file_mb:.0f}",
                str(row.threads),
                row.bare_ms.text(2),
                row.greedy_ratio.text(3),
                row.sampled_ratio.text(3),
                row.greedy_added_us.text(0),
                row.sampled_added_us.text(0),
            )
            for row in rows
        ],
        [f"{rows[0].rounds} rounds; the bare loop chooses no token." if rows else ""],
    )
