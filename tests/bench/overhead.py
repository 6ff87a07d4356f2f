"""Part ``overhead``: what a step costs outside ``llama_decode``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.clocks import Clock, Spread, TimedSampler, TimedTarget
from tests.bench.plain import ordinary, run_loop
from tests.bench.shapes import ScriptedDrafter, TreeShape

from slipstream.app.bench.report import table
from slipstream.drafters.base import Plain


@dataclass(frozen=True, slots=True)
class OverheadFigures:
    """The loop with trees of one shape, from one length of the cache."""

    nodes: int  # nodes of the tree
    leaves: int  # its leaves
    used: int  # tokens in the cache at the start
    threads: int  # threads of a pass
    tokens_per_step: float  # tokens that a step emitted
    outside_ms: Spread  # milliseconds a step outside ``llama_decode``, all in
    loop_ms: Spread  # the same without the sampler's draws
    sampling_ms: Spread  # milliseconds of one draw at temperature 0.8, one for every emitted token
    same_text: bool  # whether the text was plain decoding's in every round


def measure_overhead(
    target: TimedTarget, shape: TreeShape, used: int, steps: int, rounds: int, tell: Callable[[str], None]
) -> OverheadFigures:
    """Runs the real loop with a scripted drafter, a warm-up round first.

    Args:
        shape: The tree that is drafted in every step.
        used: Tokens in the cache at the start of a round.
        steps: Steps a round.
        rounds: Rounds that count.
        tell: Hears how far it is.
    """
    tell(f"overhead: {shape.nodes} nodes, {used} tokens in the cache")
    prompt = ordinary(target, used + 1)
    longest = max(map(len, shape.paths)) + 1
    n_vocab = target.abilities.n_vocab
    text = run_loop(target, Plain(), TimedSampler(), prompt, longest * (steps + 1)).text
    outside, loop, sampling, emitted, same = list[float](), list[float](), list[float](), 0, True
    for turn in range(rounds + 1):
        clock = Clock()
        drafter = ScriptedDrafter(shape, text, len(prompt), n_vocab)
        run = run_loop(target, drafter, TimedSampler(clock=clock), prompt, steps)
        rest = run.seconds - run.decoding
        if turn:
            outside.append(1e3 * rest / steps)
            loop.append(1e3 * (rest - clock.seconds) / steps)
            sampling.append(1e3 * clock.seconds / clock.calls)
            emitted += len(run.text)
        same = same and run.text == text[: len(run.text)]
    return OverheadFigures(
        nodes=shape.nodes,
        leaves=shape.leaves,
        used=used,
        threads=target.threads,
        tokens_per_step=emitted / (rounds * steps),
        outside_ms=Spread.of(outside),
        loop_ms=Spread.of(loop),
        sampling_ms=Spread.of(sampling),
        same_text=same,
    )


def overhead_text(rows: Sequence[OverheadFigures], n_vocab: int, n_ctx: int) -> str:
    """Lays the figures out."""
    return table(
        f"overhead: milliseconds outside llama_decode, {n_vocab:,} tokens of vocabulary, context {n_ctx:,}",
        ("tree", "in cache", "tokens/step", "loop ms/step", "sampling ms/token", "all ms/step", "same text"),
        [
            (
                f"{row.nodes} nodes, {row.leaves} leaves",
                f"{row.used:,}",
                f"{row.tokens_per_step:.2f}",
                row.loop_ms.text(3),
                row.sampling_ms.text(3),
                row.outside_ms.text(3),
                "yes" if row.same_text else "no",
            )
            for row in rows
        ],
        ["Aims: loop 0.25 ms a step with 16 nodes in 8 leaves; sampling 0.2 ms a token at temperature 0.8."],
    )
