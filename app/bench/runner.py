"""The parts of the benchmark; models are made when they are first needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipstream.app.bench.chart import Style, chart
from slipstream.app.bench.chart_svg import Section
from slipstream.app.bench.check import check_drafters
from slipstream.app.bench.check_tables import check_text
from slipstream.app.bench.drafter_tables import drafters_text
from slipstream.app.bench.drafters import compare_drafters
from slipstream.app.bench.memory import measure_memory
from slipstream.app.bench.overhead import measure_overhead
from slipstream.app.bench.peers.choice import PeerChoice
from slipstream.app.bench.peers.compare import compare_peers
from slipstream.app.bench.peers.tables import peers_text
from slipstream.app.bench.plain import compare_with_bare, opened
from slipstream.app.bench.plan import Plan
from slipstream.app.bench.report import memory_text, overhead_text, plain_text
from slipstream.app.bench.settings import Settings
from slipstream.app.bench.startup import measure_startup, startup_text
from slipstream.app.bench.stopping import Stop, Stopped
from slipstream.app.bench.topic_tables import topics_text
from slipstream.app.bench.topics import replay_topics
from slipstream.app.bench.typing_ahead import measure_typing, typing_text
from slipstream.app.bench.weights import ModelShape, write_model
from slipstream.app.engine.requests import Load
from slipstream.models.runtime.options import ContextOptions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part found.

    Attributes:
        text: To be printed.
        figures: To be written down as JSON.
        passed: False where what was checked does not hold: the command ends with exit code 1.
        bars: What can be drawn of it.
    """

    text: str
    figures: Any
    passed: bool = True
    bars: Sequence[Section] = ()


class Runner:
    """Runs the parts, each of which returns its outcome."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        bundled: Load,
        measured: Load,
        plan: Plan,
        peers: PeerChoice,
        stop: Stop,
    ) -> None:
        """Keeps what is to be measured; nothing is loaded yet.

        Args:
            settings: Sizes and repetitions.
            folder: Where models are made.
            bundled: Loads the bundled model.
            measured: Loads the model of part ``drafters``.
            plan: What it writes.
            peers: Other engines that write it, too.
            stop: Says when to stop: parts that can give what they have do, the others raise ``Stopped``.
        """
        self._stop = stop
        self._settings, self._folder, self._bundled = settings, folder, bundled
        self._measured, self._plan, self._peers = measured, plan, peers
        self._bundled_options = ContextOptions(
            kv="q8_0", flash=True, same_text=True, threads=settings.threads
        )  # as it is loaded

    def parts(self) -> Mapping[str, Callable[[], Outcome]]:
        """Every part by its name, in the order in which they run."""
        return {
            "startup": self._startup,
            "plain": self._plain,
            "overhead": self._overhead,
            "drafters": self._drafters,
            "memory": self._memory,
            "check": self._check,
            "topics": self._topics,
            "typing": self._typing,
            "interface": self._interface,
            "peers": self._others,
        }

    def _startup(self) -> Outcome:
        figures = measure_startup(self._settings.startup_rounds, self._tell)
        return Outcome(startup_text(figures), asdict(figures))

    def _plain(self) -> Outcome:
        settings = self._settings
        rows = []
        for name, path, options, steps in (
            (*self._large(), settings.large_steps),
            ("bundled", Path(self._bundled.model), self._bundled_options, settings.bundled_steps),
        ):
            with opened(path, options) as target:
                size = path.stat().st_size
                rows.append(
                    compare_with_bare(name, size, target, settings.start, steps, settings.plain_rounds, self._tell)
                )
        return Outcome(plain_text(rows), [asdict(row) for row in rows])

    def _overhead(self) -> Outcome:
        settings = self._settings
        shape, rows = settings.wide, []
        # 32-bit sums, so that the drafter's script stays right whatever branch wins; the cost of the cache is
        # inside llama_decode
        options = ContextOptions(n_ctx=settings.wide_ctx, kv="f32", flash=False, threads=settings.threads)
        with opened(self._made(shape), options) as target:
            for used in settings.used:
                for tree in settings.trees:
                    steps, rounds = settings.overhead_steps, settings.overhead_rounds
                    rows.append(measure_overhead(target, tree, used, steps, rounds, self._tell))
        return Outcome(overhead_text(rows, shape.n_vocab, settings.wide_ctx), [asdict(row) for row in rows])

    def _drafters(self) -> Outcome:
        report = compare_drafters(self._measured, self._plan, tell, self._settings.drafter_steps, self._stop)
        text = drafters_text(report) + "\n" + chart(report.rows, Style.of(sys.stdout))
        return Outcome(text, asdict(report), bars=[Section(report.model, report.rows)])

    def _check(self) -> Outcome:
        report = check_drafters(self._measured, self._plan, tell, stop=self._stop)
        return Outcome(check_text(report), asdict(report) | {"passed": report.passed}, report.passed)

    def _topics(self) -> Outcome:
        rounds = max(self._settings.topic_rounds, len(self._plan.seeds))
        report = replay_topics(self._measured, self._plan, rounds, self._tell)
        return Outcome(topics_text(report), asdict(report))

    def _typing(self) -> Outcome:
        settings, log = self._settings, self._folder / "typing.log"
        figures = measure_typing(self._measured, log, settings.typing_rounds, settings.typing_s, self._tell)
        return Outcome(typing_text(figures), asdict(figures), figures.passed)

    def _interface(self) -> Outcome:
        from slipstream.app.bench.interface import interface_text, measure_interface  # it loads the whole interface

        settings = self._settings
        figures = measure_interface(
            settings.interface_keys,
            settings.interface_tokens,
            settings.interface_messages,
            settings.interface_rounds,
            self._tell,
        )
        return Outcome(interface_text(figures), asdict(figures))

    def _others(self) -> Outcome:
        report = compare_peers(self._measured, self._plan, self._peers, self._tell)
        return Outcome(peers_text(report), asdict(report))

    def _memory(self) -> Outcome:
        rows = []
        for name, path, options in (
            ("bundled", Path(self._bundled.model), self._bundled_options),
            self._large(),
        ):
            self._tell(f"memory: {name}")
            rows.append(measure_memory(name, path, options, self._settings.memory_steps))
        return Outcome(memory_text(rows), [asdict(row) for row in rows])

    def _large(self) -> tuple[str, Path, ContextOptions]:
        shape = self._settings.large
        return (
            shape.name,
            self._made(shape),
            ContextOptions(n_ctx=self._settings.large_ctx, threads=self._settings.threads),
        )

    def _made(self, shape: ModelShape) -> Path:
        path = self._folder / f"{shape.n_vocab}-{shape.n_embd}-{shape.n_layer}.gguf"
        if not path.exists():
            self._tell("writing a model of random weights")
            write_model(path, shape)
        return path

    def _tell(self, line: str) -> None:
        if self._stop():
            raise Stopped
        tell(line)


def tell(line: str) -> None:
    """Says on stderr how far it is."""
    print(f"bench: {line}", file=sys.stderr, flush=True)
