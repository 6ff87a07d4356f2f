"""The developers' parts: each measures one property of the program, on models made for it where that matters."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.acceptance import acceptance_text, measure_acceptance
from tests.bench.busy import busy_text, measure_busy
from tests.bench.grammar import grammar_text, measure_grammar
from tests.bench.interface import interface_text, measure_interface
from tests.bench.interface_calls import calls_text, measure_calls
from tests.bench.memory import measure_memory, memory_text
from tests.bench.network import compare_networks, network_text
from tests.bench.overhead import measure_overhead, overhead_text
from tests.bench.peers.choice import PeerChoice
from tests.bench.peers.compare import compare_peers
from tests.bench.peers.tables import peers_text
from tests.bench.plain import compare_with_bare, opened, plain_text
from tests.bench.predict import compare_prediction, predict_text
from tests.bench.race import compare_race, race_text
from tests.bench.real_replies import TextChoice, replay_text, replay_texts
from tests.bench.retrieval import measure_retrieval, retrieval_text
from tests.bench.shapes import NODES_1, NODES_4, NODES_16, TreeShape
from tests.bench.startup import measure_startup, startup_text
from tests.bench.topic_tables import topics_text
from tests.bench.topics import replay_topics
from tests.bench.typing_ahead import measure_typing, typing_text
from tests.bench.waiting import measure_waiting, waiting_text
from tests.bench.weights import ModelShape, write_model

from slipstream.app.bench.intervals import speedup
from slipstream.app.bench.runner import Outcome, Parts, Setup, parts, tell
from slipstream.app.bench.turns import BenchAmounts, Stopped
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import Paths
from slipstream.models.llama.library import physical_cores
from slipstream.models.llama.target import ContextOptions

# the parts that measure the model that is asked for
OF_A_MODEL: Final = (
    "drafters",
    "check",
    "predict",
    "race",
    "topics",
    "replay",
    "typing",
    "peers",
    "network",
    "waiting",
    "busy",
)
NAMES: Final = (
    *(
        "startup",
        "plain",
        "overhead",
        "memory",
        "predict",
        "race",
        "topics",
        "replay",
        "typing",
        "interface",
        "calls",
        "grammar",
        "peers",
        "network",
        "waiting",
        "busy",
        "acceptance",
        "retrieval",
        "drafters",
        "check",
    ),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes and repetitions; the defaults take a few minutes on two cores.

    Rounds are short and many, so that the median is that of rounds that nothing else disturbed; in part ``overhead`` a
    round is whole turns of every script.
    """

    plan: BenchAmounts = field(default_factory=BenchAmounts)  # how much the parts that write replies write
    large: ModelShape = field(default_factory=ModelShape.large)  # the model whose plain step should take 10 ms or more
    # the tiny model with a large vocabulary, where everything but the model itself is expensive
    wide: ModelShape = field(default_factory=ModelShape.wide)
    threads: int = 0  # threads of a pass; 0 for as many as the engine chooses
    large_ctx: int = 2048  # context of the large model, in tokens
    wide_ctx: int = 8192  # context of the wide model, in tokens
    plain_rounds: int = 40  # rounds of part ``plain``; each runs every kind of loop once
    large_steps: int = 8  # steps a round on the large model
    bundled_steps: int = 48  # steps a round on the bundled model
    start: int = 64  # tokens in the cache where part ``plain`` begins
    used: tuple[int, ...] = (100, 6000)  # tokens in the cache where the rounds of part ``overhead`` begin
    trees: tuple[TreeShape, ...] = (NODES_1, NODES_4, NODES_16)  # the trees of part ``overhead``
    overhead_rounds: int = 36  # rounds for each tree
    overhead_steps: int = 12  # steps a round
    topic_rounds: int = 3  # how often part ``topics`` replays its text with each drafter
    memory_steps: int = 64  # tokens that part ``memory`` writes
    startup_rounds: int = 7  # starts of each program of part ``startup``
    replayed_texts: int = 40  # texts that part ``retrieval`` replays of each kind
    typing_rounds: int = 3  # replies of each kind of part ``typing``
    typing_s: float = 10.0  # seconds that it types before each
    interface_keys: int = 40  # letters that part ``interface`` types
    interface_tokens: int = 20_000  # tokens of its long reply
    interface_messages: int = 500  # messages of its long chat
    interface_rounds: int = 5  # how often that is opened
    grammar_replies: int = 6  # replies of each grammar of part ``grammar``
    waiting_passes: int = 24  # passes of each process of part ``waiting``
    waiting_rounds: int = 5  # processes of each kind
    network_ms: tuple[float, ...] = (0.2, 2.0, 10.0)  # milliseconds each way of the networks of part ``network``

    @staticmethod
    def brief() -> Sizes:
        """Less of everything, for models whose every token takes long."""
        return Sizes(BenchAmounts.brief(), topic_rounds=1, typing_rounds=1)


@dataclass(frozen=True, slots=True)
class DevelopersParts:
    """All parts, with what they are given; models are made when they are first needed."""

    setup: Setup  # what is measured
    sizes: Sizes  # how large and how long
    peers: PeerChoice  # other engines that write the same replies
    texts: TextChoice  # texts that are replayed

    def tell(self, line: str) -> None:
        """Reports the progress of a part; raises ``Stopped`` if it is to stop."""
        if self.setup.stop():
            raise Stopped
        tell(line)

    def all(self) -> Parts:
        """Every part by its name."""
        return {
            "startup": self._startup,
            "plain": self._plain,
            "overhead": self._overhead,
            "memory": self._memory,
            "predict": self._predict,
            "race": self._race,
            "topics": self._topics,
            "replay": self._replay,
            "typing": self._typing,
            "interface": self._interface,
            "calls": self._calls,
            "grammar": self._grammar,
            "peers": self._peers,
            "network": self._network,
            "waiting": self._waiting,
            "busy": self._busy,
            "acceptance": self._acceptance,
            "retrieval": self._retrieval,
            **parts(self.setup),
        }

    def _startup(self) -> Outcome:
        figures = measure_startup(self.sizes.startup_rounds, self.tell)
        return Outcome(startup_text(figures), asdict(figures))

    def _plain(self) -> Outcome:
        sizes, rows = self.sizes, []
        for (name, path, options), steps in (
            (self._large(), sizes.large_steps),
            (self._bundled(), sizes.bundled_steps),
        ):
            with opened(path, options) as target:
                size, rounds = path.stat().st_size, sizes.plain_rounds
                rows.append(compare_with_bare(name, size, target, sizes.start, steps, rounds, self.tell))
        return Outcome(plain_text(rows), [asdict(row) for row in rows])

    def _overhead(self) -> Outcome:
        sizes, rows = self.sizes, []
        # 32-bit sums, so that the drafter's script stays right whatever branch wins; the cost of the cache is
        # inside llama_decode
        options = ContextOptions(n_ctx=sizes.wide_ctx, kv="f32", flash=False, threads=sizes.threads)
        with opened(self._made(sizes.wide), options) as target:
            for used in sizes.used:
                for tree in sizes.trees:
                    steps, rounds = sizes.overhead_steps, sizes.overhead_rounds
                    rows.append(measure_overhead(target, tree, used, steps, rounds, self.tell))
        return Outcome(overhead_text(rows, sizes.wide.n_vocab, sizes.wide_ctx), [asdict(row) for row in rows])

    def _memory(self) -> Outcome:
        rows = []
        for name, path, options in (self._bundled(), self._large()):
            self.tell(f"memory: {name}")
            rows.append(measure_memory(name, path, options, self.sizes.memory_steps))
        return Outcome(memory_text(rows), [asdict(row) for row in rows])

    def _predict(self) -> Outcome:
        figures = compare_prediction(self.setup.measured, self.setup.plan, self.tell)
        return Outcome(predict_text(figures), asdict(figures) | {"share": figures.share})

    def _race(self) -> Outcome:
        found = compare_race(self.setup.measured, self.setup.plan, self.tell)
        figures = [asdict(each) | {"ratio": asdict(each.ratio), "holds": each.holds} for each in found]
        return Outcome(race_text(found), figures)

    def _topics(self) -> Outcome:
        rounds = max(self.sizes.topic_rounds, len(self.setup.plan.seeds))
        report = replay_topics(self.setup.measured, self.setup.plan, rounds, self.tell)
        return Outcome(topics_text(report), asdict(report))

    def _replay(self) -> Outcome:
        report = replay_texts(self.setup.measured, self.setup.plan, self.texts, self.tell)
        return Outcome(replay_text(report), asdict(report))

    def _typing(self) -> Outcome:
        sizes, log = self.sizes, self.setup.folder / "typing.log"
        figures = measure_typing(self.setup.measured, log, sizes.typing_rounds, sizes.typing_s, self.tell)
        return Outcome(typing_text(figures), asdict(figures), figures.passed)

    def _interface(self) -> Outcome:
        sizes = self.sizes
        figures = measure_interface(
            sizes.interface_keys, sizes.interface_tokens, sizes.interface_messages, sizes.interface_rounds, self.tell
        )
        return Outcome(interface_text(figures), asdict(figures))

    def _calls(self) -> Outcome:
        figures = measure_calls(self.tell)
        return Outcome(calls_text(figures), asdict(figures))

    def _grammar(self) -> Outcome:
        figures = measure_grammar(self.sizes.grammar_replies, self.tell)
        return Outcome(grammar_text(figures), asdict(figures))

    def _peers(self) -> Outcome:
        report = compare_peers(self.setup.measured, self.setup.plan, self.peers, self.tell)
        return Outcome(peers_text(report), asdict(report))

    def _network(self) -> Outcome:
        setup = self.setup
        delays = self.sizes.network_ms
        figures = compare_networks(setup.measured, setup.plan, delays, setup.folder, self.tell, setup.stop)
        return Outcome(network_text(figures), asdict(figures))

    def _waiting(self) -> Outcome:
        sizes = self.sizes
        threads = sizes.threads or physical_cores()
        model = Path(self.setup.measured.model)
        figures = measure_waiting(model, threads, sizes.waiting_passes, sizes.waiting_rounds, self.tell)
        return Outcome(waiting_text(figures), asdict(figures))

    def _busy(self) -> Outcome:
        found = measure_busy(self.setup.measured, self.setup.plan, self.tell)
        figures = [asdict(each) | {"speedup": asdict(speedup(each.pairs)) if each.pairs else None} for each in found]
        return Outcome(busy_text(found), figures)

    def _acceptance(self) -> Outcome:
        found = measure_acceptance(self.setup.measured, self.setup.plan, self.tell)
        return Outcome(acceptance_text(found), [asdict(each) for each in found])

    def _retrieval(self) -> Outcome:
        model = Path(self.setup.measured.model)
        found = measure_retrieval(model, self.texts.folder, self.sizes.replayed_texts, self.tell)
        return Outcome(retrieval_text(found), [asdict(row) for row in found])

    def _bundled(self) -> tuple[str, Path, ContextOptions]:
        options = ContextOptions(kv="q8_0", flash=True, same_text=True, threads=self.sizes.threads)  # as it is loaded
        return "bundled", Path(choose(Paths.default()).model), options

    def _large(self) -> tuple[str, Path, ContextOptions]:
        shape = self.sizes.large
        return shape.name, self._made(shape), ContextOptions(n_ctx=self.sizes.large_ctx, threads=self.sizes.threads)

    def _made(self, shape: ModelShape) -> Path:
        path = self.setup.folder / f"{shape.n_vocab}-{shape.n_embd}-{shape.n_layer}.gguf"
        if not path.exists():
            self.tell("writing a model of random weights")
            write_model(path, shape)
        return path
