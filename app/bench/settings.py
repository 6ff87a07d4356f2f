"""How long and how large the benchmark is."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.app.bench.options import LIMIT
from slipstream.app.bench.shapes import NODES_1, NODES_4, NODES_16, TreeShape
from slipstream.app.bench.weights import ModelShape


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes and repetitions; the defaults take a few minutes on two cores.

    Rounds are short and many, so that the median is that of rounds that nothing else disturbed; in part ``overhead`` a
    round is whole turns of every script.

    Attributes:
        large: The model whose plain step should take 10 ms or more.
        wide: The tiny model with a large vocabulary, where everything but the model itself is expensive.
        threads: Threads of a pass; 0 for as many as the engine chooses.
        large_ctx: Context of the large model, in tokens.
        wide_ctx: Context of the wide model, in tokens.
        plain_rounds: Rounds of part ``plain``; each runs every kind of loop once.
        large_steps: Steps a round on the large model.
        bundled_steps: Steps a round on the bundled model.
        start: Tokens in the cache where part ``plain`` begins.
        used: Tokens in the cache where the rounds of part ``overhead`` begin.
        trees: The trees of part ``overhead``.
        overhead_rounds: Rounds for each tree.
        overhead_steps: Steps a round.
        limit: Most prompts of a set that they reply to; 0 for all.
        temperatures: Temperatures of parts ``drafters`` and ``check``.
        seeds: How many seeds they reply to each prompt with.
        reply: Most tokens of their replies.
        topic_rounds: How often part ``topics`` replays its text with each drafter.
        drafter_steps: Tokens that are written to measure the memory of each drafter; 0 for not at all.
        memory_steps: Tokens that part ``memory`` writes.
        startup_rounds: Starts of each program of part ``startup``.
        typing_rounds: Replies of each kind of part ``typing``.
        typing_s: Seconds that it types before each.
        interface_keys: Letters that part ``interface`` types.
        interface_tokens: Tokens of its long reply.
        interface_messages: Messages of its long chat.
        interface_rounds: How often that is opened.
    """

    large: ModelShape = field(default_factory=ModelShape.large)
    wide: ModelShape = field(default_factory=ModelShape.wide)
    threads: int = 0
    large_ctx: int = 2048
    wide_ctx: int = 8192
    plain_rounds: int = 40
    large_steps: int = 8
    bundled_steps: int = 48
    start: int = 64
    used: tuple[int, ...] = (100, 6000)
    trees: tuple[TreeShape, ...] = (NODES_1, NODES_4, NODES_16)
    overhead_rounds: int = 36
    overhead_steps: int = 12
    limit: int = LIMIT
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seeds: int = 1
    reply: int = 160
    topic_rounds: int = 3
    drafter_steps: int = 64
    memory_steps: int = 64
    startup_rounds: int = 7
    typing_rounds: int = 3
    typing_s: float = 10.0
    interface_keys: int = 40
    interface_tokens: int = 20_000
    interface_messages: int = 500
    interface_rounds: int = 5

    @staticmethod
    def brief() -> Settings:
        """Less of everything, for models whose every token takes long."""
        return Settings(limit=2, temperatures=(0.8,), reply=64, topic_rounds=1, drafter_steps=0, typing_rounds=1)
