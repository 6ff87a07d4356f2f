"""Whether the same seed gives the same text on a model: with every drafter, on any threads, however its prompt is read.

A command: ``python -m tests.soak.same_text [MODEL…] [--kinds] [--cases N] [--exact HOW] [--draft MODEL] [--keep F]``.
Every case draws a prompt, a temperature, settings (penalties, biases, a schema, a full context, a second turn), and for
each drafter a number of threads, a size of the prompt's chunks, whether a core is busy, and how the prompt is read: at
once, while it is typed, or from a kept state. Prints a row of a table for each model: what it promises, what bit-equal
logits cost (``--costs``, on a quiet machine), the replies that were compared with plain ones, and how many differ. With
``--keep`` a run goes on where the last one stopped, and the table has the models of all runs.

Where only the same odds are promised, ``--odds POSITIONS`` draws tokens of real text from a pass of one row and from
one of five, by the same noise, and a draft that is often right. A line says in how many draws the tokens differ, and
which of the two has the draft's token then; if rounding pulled towards drafts, the pass of five rows would have it more
often.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.models.kinds import KINDS, MORE, write_kind

from slipstream.app.bench.check import explain
from slipstream.app.bench.turns import BenchTurn
from slipstream.app.engine.calibrate import SAMPLE_TEXT
from slipstream.app.engine.exactness import SAME_TEXT, measure_cost
from slipstream.app.engine.load import load
from slipstream.app.engine.plan import options_for, plan_load
from slipstream.app.engine.session import Session
from slipstream.app.library.resolve_model import choose
from slipstream.app.platform.paths import HOME_VARIABLE, Paths
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import EXACT, Generate, Load, Lora, Message, Prepare, Sampling
from slipstream.drafters.text_index import TextPiece, open_index
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import physical_cores
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, History, Token, TokenTree

CONTEXT: Final = 512
BYTES: Final = 1536  # context of random models, in which a letter is a token
COSTS: Final = 9  # measurements of the cost: all but the least and the greatest span 96 % of the median
DRAWS: Final = 100  # seeds at each position
BLUR: Final = 1.0  # standard deviation of the draft's logits around the target's
LEAST_P: Final = 1e-4
TEMPERATURES: Final = (0.0, 0.2, 0.8, 1.3)
CHUNKS: Final = (0, 32, 64, 512)
JOINED: Final = {"draft": ("lookup+draft", "lookup|draft", "draft:lookup"), "eagle3": ("eagle3:lookup",)}
BUSY: Final = 0.15  # share of replies beside a busy core
PROMPTS: Final = (
    "Tell me a story about a small fox.",
    "Write a list of ten animals, and then the same list again.",
    "Repeat this three times: the sea, the sea, the old grey sea.",
    "def rows(path):\n    with open(path) as file:\n        for line in file:\nGo on, and explain it.",
    f"Summarize this, and quote it.\n\n{SAMPLE_TEXT}",
)
SCHEMA: Final = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}})
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "usual": {}, "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "dry": {"dry": 0.8, "top_n_sigma": 1.5}, "bias": {"logit_bias": "e=-2, a=1.5"},
    "nucleus": {"top_k": 0, "top_p": 0.9, "min_p": 0.0}, "schema": {}, "overflow": {}, "turns": {},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """How a reply's prompt is read, and on how many threads it is written."""

    threads: int
    chunk: int
    reading: str  # "at once", "typed" or "kept"
    busy: bool

    @staticmethod
    def drawn(rng: random.Random) -> "Way":
        threads, reading = rng.choice((1, 1, physical_cores())), rng.choice(("at once", "typed", "kept"))
        return Way(threads, rng.choice(CHUNKS), reading, rng.random() < BUSY)


def write(session: Session, generate: Generate, way: Way, fresh: bool) -> tuple[Done, list[Token]]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"] if way.busy else ["true"]) as beside:
        try:
            return _written(session, generate, way, fresh)
        finally:
            beside.kill()


def _written(session: Session, generate: Generate, way: Way, fresh: bool) -> tuple[Done, list[Token]]:
    target, messages = session.target, generate.messages
    assert isinstance(target, LlamaTarget)
    target.use_threads(way.threads)
    target.use_chunks(way.chunk)
    if fresh:
        session.forget()
    if way.reading == "typed":
        for share in (0.3, 0.7):
            text = messages[-1].content
            beginning = [*messages[:-1], replace(messages[-1], content=text[: int(share * len(text))])]
            session.prepare(Prepare(beginning, generate.drafter), lambda: False, lambda: False)
    elif way.reading == "kept" and fresh:
        target.prefill(session.prompt(messages)[:-1])
        state, tokens = target.save(), list(target.tokens)
        target.reset()
        target.restore(state, tokens)
    written: list[Token] = []

    def take(event: Prefilling | Stepped) -> None:
        if isinstance(event, Stepped):
            written.extend(event.tokens)

    return session.reply(generate, take, lambda: False), written


def compare(session: Session, promise: str, names: Sequence[str], case: int, size: int) -> Counter[str]:
    """Writes a case's replies with every drafter; returns the counts of the table."""
    counts, rng = Counter[str](), random.Random(case)
    setting = list(SETTINGS)[case % len(SETTINGS)]
    prompt = f"{SAMPLE_TEXT}\n{PROMPTS[0]}" if setting == "overflow" else rng.choice(PROMPTS)
    sampling = Sampling(temperature=TEMPERATURES[(case + case // len(SETTINGS)) % 4], seed=case, **SETTINGS[setting])
    messages = [Message("user", prompt)]
    if setting == "overflow":
        messages = [Message("user", SAMPLE_TEXT), Message("assistant", "It is noted."), *messages]
    for turn in range(2 if setting == "turns" else 1):
        like = Generate(1, messages, sampling, "none", size, grammar=SCHEMA if setting == "schema" else "")
        try:
            done, plain = write(session, like, Way.drawn(rng), fresh=not turn)
        except SlipstreamError as error:
            print(f"  left out: {setting}: {error.title}", file=sys.stderr)
            break
        for name in ("none", *names):
            way = Way.drawn(rng)
            drafted, tokens = write(session, replace(like, drafter=name), way, fresh=rng.random() < 0.5)
            counts["replies"] += 1
            counts["tokens"] += len(tokens)
            counts["drafted"] += drafted.speed.drafted
            counts["accepted"] += drafted.speed.accepted
            if tokens == plain:
                continue
            kind = "differ" if promise == SAME_TEXT else "grammar" if like.grammar else "wrong"
            if kind == "wrong":
                shown = BenchTurn("soak", 0, turn, tuple(messages), sampling, size)
                found = explain(session, shown, plain, tokens)  # reads the prompt in the drafted reply's chunks
                kind = "near ties" if found.near_tie or found.again == found.drafted else kind
            counts[kind] += 1
            print(f"  {kind}: case {case}, {setting}, turn {turn}, {name}, {way}", file=sys.stderr, flush=True)
        messages = [*messages, Message("assistant", done.text, done.tokens), Message("user", "And then?")]
    return counts


def measure(request: Load, record: dict[str, Any], options: argparse.Namespace, keep: Callable[[], None]) -> None:
    """Adds to what is known of a model until it has had enough cases, and its cost if that is wanted."""
    counts = Counter[str](record.setdefault("counts", {}))
    if counts["cases"] >= options.cases and not options.costs:
        return
    with tempfile.TemporaryDirectory(prefix="same-text-") as folder:
        request = replace(request, derived=folder, proofs=folder, index=f"{folder}/index", chats=None, left_out=None)
        if options.costs:
            record["cost"] = _cost(request)
            keep()
        if counts["cases"] >= options.cases:
            return
        _index(request)
        session, loaded = load(request, lambda _: None)
        with closing(session):
            session.fix_threads()
            names = [offer.name for offer in loaded.drafters if offer.usable and offer.name != "none"]
            names += [joined for name in JOINED if name in names for joined in JOINED[name]]
            record["promise"] = loaded.promise + (f" ({loaded.promise_why})" if loaded.promise_why else "")
            while counts["cases"] < options.cases:
                counts += compare(session, loaded.promise, names, counts["cases"], options.tokens)
                counts["cases"] += 1
                record["counts"] = dict(counts)
                keep()


def _index(request: Load) -> None:
    """Fills the index of retrieval with plain replies."""
    session, _ = load(request, lambda _: None)
    with closing(session), closing(open_index(Path(request.index or ""), read_header(Path(request.model)))) as index:
        asked = [Generate(1, [Message("user", prompt)], Sampling(seed=4), max_tokens=48) for prompt in PROMPTS]
        plain = Way(1, 0, "at once", busy=False)
        index.add([TextPiece(str(at), write(session, each, plain, True)[1]) for at, each in enumerate(asked)])


def shown(name: str, record: dict[str, Any]) -> str:
    counts = Counter[str](record["counts"])
    numbers = [f"{counts[each]:,}" for each in ("replies", "tokens", "drafted", "accepted", "differ", "near ties")]
    other = counts["wrong"] + counts["grammar"]
    return f"| {name} | {record.get('promise', '')} | {record.get('cost', '')} | {' | '.join(numbers)} | {other} |"


def _cost(request: Load) -> str:
    """What bit-equal logits cost beside the fastest settings: the median, and its interval."""
    plan = plan_load(replace(request, exact="never"), lambda _: None)
    fast = options_for(request, CONTEXT, plan.fit.kv_type, scores=plan.scores)
    found = []
    try:
        with closing(LlamaModel(Path(request.model), adapters=plan.adapters)) as model:
            text = model.tokenize(SAMPLE_TEXT * 4, special=False)
            for _ in range(COSTS):
                exact = options_for(request, CONTEXT, "q8_0", same_text=True, values="f16")
                with closing(LlamaTarget(model, exact)) as one, closing(LlamaTarget(model, fast)) as other:
                    found.append(100 * measure_cost(one, other, text, (1,)))
    except SlipstreamError:
        return "-"
    found.sort()
    return f"{found[COSTS // 2]:+.0f} % [{found[1]:+.0f}, {found[-2]:+.0f}]"


def odds(request: Load, positions: int) -> tuple[str, bool]:
    """Draws of two passes at each position; the test flips the signs of whole positions, which share one rounding."""
    rng, sampler = np.random.default_rng(1), Sampler(temperature=1.0)
    session, loaded = load(replace(request, exact="never"), lambda _: None)
    with closing(session):
        target = session.target
        assert isinstance(target, LlamaTarget)
        target.request(frozenset())
        text = target.model.tokenize(SAMPLE_TEXT, special=False)[: CONTEXT // 2]
        first = len(text)
        while len(text) < CONTEXT - 8:  # goes on freely: a text that repeats itself leaves no choice
            target.prefill(text[:-1])
            text.append(replace(sampler, temperature=1.3).pick(target.evaluate(text[-1]).logits[0], History(text)))
            target.keep(())
        nets, differ, taken = [], 0, [0, 0]
        for at in sorted(rng.choice(np.arange(first, len(text)), min(positions, len(text) - first), replace=False)):
            target.prefill(text[:at])
            one = target.evaluate(text[at], EMPTY_TREE).logits[0].copy()
            target.keep(())
            target.rewind(int(at))
            five = target.evaluate(text[at], TokenTree.chain(text[:4])).logits[0].copy()
            target.keep(())
            blurred = one + BLUR * rng.standard_normal(one.shape).astype(np.float32)
            before, history = taken.copy(), History(text[: at + 1])
            for seed in range(DRAWS):
                drawing = replace(sampler, seed=seed)
                plain, drafted = drawing.pick(one, history), drawing.pick(five, history)
                if plain != drafted:
                    differ += 1
                    draft = drawing.pick(blurred, history)
                    taken = [taken[0] + (plain == draft), taken[1] + (drafted == draft)]
            nets.append(taken[1] - before[1] - taken[0] + before[0])
    flips = rng.choice((-1, 1), (20_000, len(nets))) @ np.array(nets)
    p = float((np.abs(flips) >= abs(sum(nets))).mean())
    what = f"{len(nets)} positions, {len(nets) * DRAWS:,} draws, {differ:,} differ"
    then = f"the draft's token has then the plain pass {taken[0]} times, the pass of five rows {taken[1]}"
    line = f"same odds: {loaded.title}, {what}; {then}; p {p:.2g}"
    return line, p >= LEAST_P


def requests(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Load]]:
    paths = Paths.default({HOME_VARIABLE: str(folder)})
    for model in options.models:
        request = choose(paths, model, options.draft, "none", CONTEXT)
        lora = [Lora.read(each) for each in options.lora or ()]
        name = " + ".join([Path(request.model).name, *(each.words for each in lora)])
        yield name, replace(request, exact=options.exact, lora=lora)
    for kind in (*KINDS, *MORE) if options.kinds else ():
        file = write_kind(folder / f"random-{kind}.gguf", kind, q8_0=True, head=32)
        draft = write_kind(folder / f"random-{kind}-draft.gguf", kind, blur=0.03, q8_0=True, head=32)
        yield f"random {kind}", Load(str(file), str(draft), n_ctx=BYTES, exact=options.exact)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.same_text")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="files, or names of models")
    parser.add_argument("--kinds", action="store_true", help="also random models of every kind of memory")
    parser.add_argument("--cases", type=int, default=32, metavar="N", help="cases of each model (32: all of them)")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="most tokens of a reply (32)")
    parser.add_argument("--exact", choices=EXACT, default="always", help="as for slipstream (always)")
    parser.add_argument("--odds", type=int, default=0, metavar="N", help="positions for the test of the odds (0)")
    parser.add_argument("--costs", action="store_true", help="also measure what exact logits cost")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="goes on from this file, and writes it")
    parser.add_argument("--lora", action="append", metavar="FILE[:SCALE]", help="an adapter of the models")
    parser.add_argument("--draft", metavar="MODEL", help="a draft model for the models")
    options = parser.parse_args()
    records: dict[str, dict[str, Any]] = {}
    if options.keep and options.keep.exists():
        records = json.loads(options.keep.read_text())
    good = True

    def keep() -> None:
        if options.keep:
            options.keep.write_text(json.dumps(records, indent=1))

    with tempfile.TemporaryDirectory(prefix="same-text-") as folder:
        for name, request in requests(options, Path(folder)):
            measure(request, records.setdefault(name, {}), options, keep)
            if options.odds:
                line, fair = odds(request, options.odds)
                print(line, flush=True)
                good = good and fair
    print("| model | promise | cost | replies | tokens | drafted | accepted | differ | near ties | not explained |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, record in records.items():
        print(shown(name, record))
    total = sum((Counter[str](record["counts"]) for record in records.values()), Counter[str]())
    failed = total["differ"] + total["wrong"]
    bound = "" if failed else f", 95 % bound {3 / max(1, total['replies']):.2%}"
    print(f"same text: {total['replies']:,} replies against plain ones, {failed} failed{bound}")
    return int(failed > 0 or not good)


if __name__ == "__main__":
    sys.exit(main())
