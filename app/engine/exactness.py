"""Proves that a model's logits do not depend on how its tokens are passed to it, and measures what that costs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import inf
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np

from slipstream.app.engine.calibrate import timed_pass
from slipstream.app.engine.stats import OtherPrograms
from slipstream.app.protocol.requests import Exact
from slipstream.drafters.memory import DrafterMemory
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions, Target
from slipstream.models.types import EMPTY_TREE, Floats, Token, TokenTree

SAME_TEXT: Final = "same text"
SAME_DISTRIBUTION: Final = "same distribution"
CHEAP: Final = 0.03  # if bit-equal logits make a step longer by at most this share, they are the default
_LENGTH: Final = 512  # tokens of the contexts that are compared
_FEW: Final = 3
_STAGES: Final = ((_FEW, 5, (2, 5)), (260, 6, (2, 5, 17, 40)), (48, 18, (2, 3, 5, 9, 17, 40)))
"""Tokens of text, single-row passes after them, and the rows of the passes that are compared with these.

Where logits differ, they mostly do so after a few tokens. llama.cpp's attention computes long and short caches in other
ways; the long text comes before the short one, since the measurement of the cost has read most of it.
"""
_CHUNKS: Final = (512, 32)
_REREAD: Final = 40  # tokens of a text that are read again in other chunks
_SINGLE: Final = 64  # single-row passes of a proof
_MANY: Final = 550  # rows of all its other passes
_MOST_SECONDS: Final = 8.0  # a longer proof is only made where the exact settings are asked for
_TRIES: Final = 2  # loads that may end in a proof before it is left out
_STEPS: Final = 5  # rounds of passes from which the cost is measured
_COST_AT: Final = 192  # tokens before them: reading those takes most of the measurement
_KEPT: Final = "exact"
_CORES: Final = "the number of cores"
_MOST_KEPT: Final = 16  # settings whose proofs are kept for a model


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a model with exact settings.

    Attributes:
        why: Why its logits are not bit-equal, as the end of a sentence; empty if they are.
        slower: The share by which a step is longer than with the fastest settings; None if it was not measured, or only
            on a busy machine.
        proven: Whether it was tried to the end.
        ended: Number of loads that ended in it, by the user or by a crash; ``_TRIES`` if it takes too long.
    """

    why: str = ""
    slower: float | None = None
    proven: bool = True
    ended: int = 0

    @property
    def chosen(self) -> bool:
        """Whether these settings are the default; they cost little, so they are until a quiet machine has measured."""
        return not self.why and (self.slower or 0.0) <= CHEAP


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a model decodes; ``why`` is empty if the same text is promised, else the reason as the end of a sentence."""

    options: ContextOptions
    why: str

    @property
    def promise(self) -> str:
        return SAME_DISTRIBUTION if self.why else SAME_TEXT


class KeptProofs:
    """The proofs of one model on this machine, by their settings, in a file.

    Attributes:
        changed: What has changed since the last load, so that the text may; a build of llama.cpp may have other logits.
    """

    def __init__(self, memory: DrafterMemory, build: str, cores: int) -> None:
        """Reads the file; drops the proofs of another build."""
        self._memory, self._machine = memory, {"build": build, "cores": cores}
        kept = _entries(memory.read(_KEPT))
        same = not kept or kept.get("build") == build
        self.changed = "" if same and kept.get("cores", cores) == cores else _CORES if same else "llama.cpp"
        self._proofs: dict[str, Any] = dict(kept.get("proofs", {})) if same else {}
        if not kept or self.changed:
            self._write()

    def get(self, settings: str) -> Proof | None:
        """The proof with these settings."""
        try:
            return Proof(**self._proofs[settings])
        except (KeyError, TypeError):
            return None

    def put(self, settings: str, proof: Proof) -> None:
        others = [(name, other) for name, other in self._proofs.items() if name != settings]
        self._proofs = {**dict(others[1 - _MOST_KEPT :]), settings: asdict(proof)}
        self._write()

    def _write(self) -> None:
        self._memory.write(_KEPT, json.dumps({**self._machine, "proofs": self._proofs}).encode())


def _entries(raw: bytes | None) -> Mapping[str, Any]:
    try:
        found = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("proofs", {}), dict) else {}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The settings between which a load chooses.

    Attributes:
        fast: The fastest settings.
        exact: The settings whose logits may be bit-equal; None if the model or the request forbids them.
        why_not: Why there are none, as the end of a sentence.
        threads: Every number of threads that passes may use.
    """

    fast: ContextOptions
    exact: ContextOptions | None
    why_not: str
    threads: Sequence[int]


def decide(
    model: LlamaModel, comparison: Comparison, wanted: Exact, text: Sequence[Token], kept: KeptProofs | None, key: str
) -> Decoding:
    """Chooses how a model decodes; measures what is not kept.

    Args:
        text: Tokens of real text; they are repeated if there are too few.
        kept: None proves at each load, and chooses the exact settings only if they are ``wanted`` always.
        key: What else decides: weights, adapters, devices.
    """
    fast, exact = comparison.fast, comparison.exact
    if wanted == "never" or exact is None:
        return Decoding(fast, comparison.why_not if wanted != "never" else "--exact never was chosen")
    if wanted == "auto" and kept is None:
        return Decoding(fast, "this load keeps no proof")
    settings = f"{key} {replace(exact, n_ctx=0)} {comparison.threads}"
    proof = before = kept.get(settings) if kept else None
    ended, slower = (proof.ended, proof.slower) if proof else (0, None)
    if proof and not proof.proven and (wanted == "always" or (slower is None and ended < _TRIES)):
        proof = None
    costs = wanted == "auto" and (proof is None or (not proof.why and proof.slower is None))
    if proof is None or costs:
        if kept:
            kept.put(settings, Proof("its proof did not end", proven=False, ended=ended + 1))
        try:
            proof = _measured(model, comparison, text, proof, costs)
            proof = proof if costs else replace(proof, slower=slower)
            if kept:
                kept.put(settings, proof)
                if costs and before and not ended and before.chosen != proof.chosen:
                    kept.changed = "the cost of bit-equal logits"
        except SlipstreamError as error:
            proof = Proof(f"the proof failed: {error.title.rstrip('.')}", proven=False)
    if wanted == "auto" and not proof.chosen:
        return Decoding(fast, proof.why or f"that is {100 * (proof.slower or 0.0):.0f} % slower here; see --exact")
    if kept and not proof.why and kept.changed == _CORES:
        kept.changed = ""  # they do not change exact logits
    return Decoding(exact, proof.why)


def _measured(
    model: LlamaModel, comparison: Comparison, text: Sequence[Token], known: Proof | None, costs: bool
) -> Proof:
    assert comparison.exact
    text, others = list(text) * (1 + _LENGTH // max(1, len(text))), OtherPrograms()
    others.begin()
    with closing(_opened(model, comparison.exact)) as exact:

        def busy() -> bool:
            return not exact.placement.devices and others.busy_at_last()

        def cost() -> float | None:
            with closing(_opened(model, comparison.fast)) as fast:
                slower = measure_cost(exact, fast, text, comparison.threads)
                if slower > CHEAP:
                    slower = min(slower, measure_cost(exact, fast, text, comparison.threads))
            return None if busy() else slower

        if known:
            return replace(known, slower=cost())
        proof = prove(exact, text, comparison.threads, *((_MOST_SECONDS, cost) if costs else ()))
        return replace(proof, ended=0) if proof.ended and busy() else proof


def _opened(model: LlamaModel, options: ContextOptions) -> LlamaTarget:
    return LlamaTarget(model, replace(options, n_ctx=_LENGTH))


def prove(
    target: LlamaTarget,
    text: Sequence[Token],
    threads: Sequence[int],
    most: float | None = None,
    cost: Callable[[], float | None] = lambda: None,
) -> Proof:
    """Compares the logits of passes over other rows, chunks and threads, bit by bit.

    Args:
        most: Greatest expected time in seconds, else the proof is left out; None for any.
        cost: Measures the share by which a step is longer; what costs too much is not proven.
    """
    target.prefill(text[:_FEW])
    wide = TokenTree.chain((1, 2, 3, 4)[: target.abilities.max_rows - 1])
    took, seconds, slower = {}, inf, None
    for count in threads:
        target.use_threads(count)
        clock = _clock(target, count)
        took[count] = min(timed_pass(target, EMPTY_TREE) for _ in range(_FEW))
        one, five = (timed_pass(target, tree, clock) for tree in (EMPTY_TREE, wide))
        seconds = min(seconds, (_SINGLE * one + _MANY * max(0.0, five - one) / 4) / 1e3)
    # on busy cores, many threads take far longer than one
    threads = sorted(threads, key=took.__getitem__)
    if most and seconds > most:
        why = f"its proof would take {seconds:.0f} seconds; --exact always makes it"
        return Proof(why, proven=False, ended=_TRIES)
    try:
        for stage in _STAGES:
            if stage == _STAGES[1]:
                slower = cost()
                if (slower or 0.0) > CHEAP:
                    return Proof(slower=slower, proven=False)
            for difference in _differences(target, text, threads, *stage):
                if difference:
                    return Proof(difference, slower)
    finally:
        target.use_chunks(0)
        target.rewind(0)
    return Proof(slower=slower)


def _clock(target: LlamaTarget, threads: int) -> Callable[[], float]:
    """Processor time where other programs would count otherwise."""
    return process_time if threads == 1 and not target.placement.devices else perf_counter


def _differences(
    target: LlamaTarget, text: Sequence[Token], threads: Sequence[int], prefix: int, rows: int, widths: Sequence[int]
) -> Iterator[str]:
    """Yields for every comparison an empty text if all bits are equal, else what differs."""
    start, tail, most = text[:prefix], text[prefix : prefix + max(widths) + 1], target.abilities.max_rows
    target.use_threads(threads[0])
    target.use_chunks(_CHUNKS[0])
    target.prefill(start)
    plain = _single(target, tail[:rows])
    for width in (width for width in widths if width <= most):
        target.rewind(prefix)
        found = target.evaluate(tail[0], TokenTree.chain(tail[1:width])).logits
        yield _between(plain, found, f"between passes of 1 and {width} rows")
        target.keep(tuple(range(width - 1)))
        if width < rows:
            yield _between(plain[width:], _single(target, tail[width : width + 1]), f"after a pass of {width} rows")
    if prefix == _FEW:
        return
    if target.abilities.max_leaves > 1:
        target.rewind(prefix)
        target.evaluate(tail[0], TokenTree((tail[2], tail[1]), (-1, -1)))
        target.keep((1,))
        yield _between(plain[2:], _single(target, tail[2:4]), "after a tree")
    for count in threads[1:]:
        target.use_threads(count)
        target.rewind(prefix)
        words = f"between {threads[0]} and {count} threads"
        yield _between(plain, _single(target, tail[:3]), words)
        yield _between(plain[3:], target.evaluate(tail[3], TokenTree.chain(tail[4 : 3 + min(5, most)])).logits, words)
        target.keep(())
    target.use_chunks(_CHUNKS[1])
    target.rewind(max(0, prefix - _REREAD))
    target.prefill(start)
    yield _between(plain, _single(target, tail[:3]), "between a prompt in small and in large chunks")


def _single(target: Target, tokens: Sequence[Token]) -> list[Floats]:
    rows = []
    for token in tokens:
        rows.append(target.evaluate(token, EMPTY_TREE).logits[0].copy())
        target.keep(())
    return rows


def _between(plain: Sequence[Floats], others: Sequence[Floats] | Floats, words: str) -> str:
    pairs = list(zip(plain, others, strict=False))
    if all(np.array_equal(*pair) for pair in pairs):
        return ""
    return f"its logits differ by up to {max(float(np.abs(np.subtract(*pair)).max()) for pair in pairs):.2g} {words}"


def measure_cost(exact: LlamaTarget, fast: LlamaTarget, text: Sequence[Token], threads: Sequence[int]) -> float:
    """The share by which a plain pass and one of four rows (or fewer, if it takes no more) are longer with ``exact``.

    Passes alternate, and the least times count. One thread on the processor is measured in processor time, so that
    other programs do not matter.
    """
    targets, count = (exact, fast), min(threads)
    clock = _clock(exact, count)
    for target in targets:
        target.use_threads(max(threads))
        target.prefill(text[:_COST_AT])
        target.use_threads(count)
    wide = TokenTree.chain((1, 2, 3)[: exact.abilities.max_rows - 1])
    took: list[list[float]] = [[], [], [], []]
    for _ in range(_STEPS):
        for at, tree in enumerate((EMPTY_TREE, wide)):
            for number, target in enumerate(targets):
                took[2 * number + at].append(timed_pass(target, tree, clock))
                target.rewind(_COST_AT)
    one, four, plain, plain_four = (min(times) for times in took)
    return (one + four) / (plain + plain_four) - 1
