"""What passes of a loaded model cost, by rows, and where a step spends its time; on a GPU and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.app.bench.report import table
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama import context as llama_context
from slipstream.models.llama import features
from slipstream.models.llama.batch import Batch
from slipstream.models.llama.ggml import calls
from slipstream.models.llama.library import process_log, rows_at, run_pass
from slipstream.models.llama.memory import open_context
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, Floats, History

ROWS: Final = (1, 2, 4, 8, 16)
_CONTEXT: Final = 512  # tokens of the measured context
_USED: Final = 128  # tokens in its cache
_CHANGES: Final = 5  # passes after another width
_EQUAL: Final = 12  # equal passes in a row; a CUDA device captures the second and replays the rest
_TOP_K: Final = 40  # the default of the sampling


@dataclass(frozen=True, slots=True)
class PassCost:
    """Milliseconds of a pass of one number of rows."""

    rows: int
    changed: float  # after a pass of another width: its graph is built anew, and no device replays it
    second: float  # the second equal pass, which a CUDA device captures
    equal: float  # the equal passes after that, which it replays
    submitted: float  # of ``equal``, until ``llama_decode`` returns
    one_output: float  # ``equal`` with the logits of one row only
    top_k: float | None  # ``equal`` where the device chooses the largest logits of each row; None if it cannot
    same_top_k: bool  # whether these are the largest of all logits, bit for bit
    pick: float  # drawing a token from each row of logits
    pick_top_k: float  # drawing a token from the largest of each row


class PassTimer:
    """Passes of a context of its own, each from the same cache."""

    def __init__(self, model: LlamaModel, device_top_k: bool = False) -> None:
        params = ContextOptions(n_ctx=_CONTEXT, max_leaves=1).params(_CONTEXT, model.recurrent)
        self._context, self._sampler = open_context(model, params), None
        self._batch = Batch(params.n_batch, params.n_seq_max)
        self._n_vocab, self._n_rows = model.n_vocab, model.n_rows
        self._batch.prompt(self._tokens(_USED), 0, output_all=False)
        C.llama_decode(self._context, self._batch.batch)
        self.has_top_k = False
        if device_top_k:
            self._sampler = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
            C.llama_sampler_chain_add(self._sampler, C.llama_sampler_init_top_k(_TOP_K))
            self.has_top_k = bool(C.llama_set_sampler(self._context, 0, self._sampler))

    def run(self, rows: int, all_outputs: bool = True) -> tuple[float, float]:
        """Milliseconds of a pass until it is submitted, and until its logits can be read."""
        self._batch.tree(self._tokens(rows), _USED, EMPTY_TREE, 1, output_all=all_outputs)
        began = perf_counter()
        code = C.llama_decode(self._context, self._batch.batch)
        submitted = perf_counter()
        C.llama_synchronize(self._context)
        ended = perf_counter()
        if code:
            raise SlipstreamError(f"a pass of {rows} rows failed with code {code}.", "Try a smaller model.")
        C.llama_memory_seq_rm(C.llama_get_memory(self._context), -1, _USED, -1)
        return 1e3 * (submitted - began), 1e3 * (ended - began)

    def logits(self, rows: int) -> Floats:
        """The logits of the last pass, [rows, words]."""
        return rows_at(C.llama_get_logits(self._context), rows, self._n_rows)[:, : self._n_vocab]

    def chosen(self, row: int) -> dict[int, float]:
        """The tokens that the device chose in a row of the last pass, and their logits."""
        count = C.llama_get_sampled_candidates_count_ith(self._context, row)
        tokens = C.llama_get_sampled_candidates_ith(self._context, row)
        values = C.llama_get_sampled_logits_ith(self._context, row)
        return {tokens[at]: values[at] for at in range(count)}

    def equal(self, rows: int, all_outputs: bool = True) -> list[tuple[float, float]]:
        return [self.run(rows, all_outputs) for _ in range(_EQUAL)]

    def close(self) -> None:
        C.llama_free(self._context)
        if self._sampler:
            C.llama_sampler_free(self._sampler)

    def _tokens(self, count: int) -> list[int]:
        return [(at * 7919 + 4099) % self._n_vocab for at in range(count)]


def measure_passes(model: LlamaModel, late: Callable[[], bool] = lambda: False) -> list[PassCost]:
    """Times passes of ``ROWS`` rows; fewer once it is late."""
    found = []
    with (
        process_log().listening(),
        closing(PassTimer(model)) as timer,
        closing(PassTimer(model, device_top_k=True)) as choosing,
    ):
        timer.equal(1)
        for rows in ROWS:
            if late():
                break
            changed = []
            for _ in range(_CHANGES):
                timer.run(2 if rows == 1 else 1)
                changed.append(timer.run(rows)[1])
            timer.run(2 if rows == 1 else 1)
            equal = timer.equal(rows)
            logits = timer.logits(rows).copy()
            chosen = _median(choosing.equal(rows), 1) if choosing.has_top_k else None
            found.append(
                PassCost(
                    rows=rows,
                    changed=median(changed),
                    second=equal[1][1],
                    equal=_median(equal, 1),
                    submitted=_median(equal, 0),
                    one_output=_median(timer.equal(rows, all_outputs=False), 1),
                    top_k=chosen,
                    same_top_k=chosen is not None and all(_same(logits[at], choosing.chosen(at)) for at in range(rows)),
                    pick=_pick_ms(logits),
                    pick_top_k=_pick_ms(np.sort(logits)[:, -_TOP_K:]),
                )
            )
    return found


def _same(logits: Floats, chosen: dict[int, float]) -> bool:
    largest = np.argsort(-logits, kind="stable")[:_TOP_K].tolist()
    return chosen == {token: float(logits[token]) for token in largest}


def _pick_ms(logits: Floats) -> float:
    """Milliseconds to draw a token from each row."""
    sampler, history, took = Sampler(), History([0]), list[float]()
    for _ in range(_EQUAL):
        began = perf_counter()
        for row in logits:
            sampler.pick(row, history)
        took.append(1e3 * (perf_counter() - began))
    return median(took)


def _median(passes: list[tuple[float, float]], which: int) -> float:
    return median(each[which] for each in passes[2:])


def passes_text(name: str, costs: list[PassCost]) -> str:
    """A row for each number of rows."""
    plain = costs[0].equal if costs else 1.0
    rows = [
        (
            str(cost.rows),
            f"{cost.changed:.2f}",
            f"{cost.second:.2f}",
            f"{cost.equal:.2f}",
            f"{cost.equal / plain:.2f}",
            f"{cost.submitted:.2f}",
            f"{cost.equal - cost.one_output:+.2f}",
            "-" if cost.top_k is None else f"{cost.top_k:.2f}{'' if cost.same_top_k else ', others'}",
            f"{cost.pick:.2f}",
            f"{cost.pick_top_k:.2f}",
        )
        for cost in costs
    ]
    head = (
        "rows",
        "changed",
        "second",
        "equal",
        "of 1 row",
        "submit",
        "logits of all rows",
        f"with top {_TOP_K}",
        "draw",
        f"of {_TOP_K}",
    )
    return table(f"passes, ms: {name}", head, rows)


@dataclass(slots=True)
class ContextClock:
    """Time inside the passes of some contexts."""

    passes: int = 0
    submitted: float = 0.0  # seconds until the call returned
    waited: float = 0.0  # seconds from then until the device had finished


@dataclass(slots=True)
class PassClock:
    """Times every pass of this process: of the target, and of all other contexts and graphs."""

    target: Any  # the target's ``llama_context``
    own: ContextClock = field(default_factory=ContextClock)
    others: ContextClock = field(default_factory=ContextClock)
    steps: int = 0  # steps whose passes are counted

    def after_step(self) -> None:
        """Call after each step of a reply; the passes of the prompt and of the first step are not counted."""
        if self.steps < 0:
            self.own, self.others = ContextClock(), ContextClock()
        self.steps += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        """Waits for the end of each pass in the body, so it must not be used where speed is measured."""
        self.steps = -1
        compute = calls().backend_graph_compute

        def timed(call: Any, context: Any, batch: Any) -> int:
            began = perf_counter()
            code = run_pass(call, context, batch)
            submitted = perf_counter()
            C.llama_synchronize(context)
            clock = self.own if context == self.target else self.others
            self._add(clock, submitted - began, perf_counter() - submitted)
            return code

        def computed(backend: Any, graph: Any) -> int:
            began = perf_counter()
            code: int = compute(backend, graph)  # it waits itself
            self._add(self.others, perf_counter() - began, 0.0)
            return code

        with (
            patch.object(llama_context, "run_pass", timed),
            patch.object(features, "run_pass", timed),
            patch.object(calls(), "backend_graph_compute", computed),
        ):
            yield

    @staticmethod
    def _add(clock: ContextClock, submitted: float, waited: float) -> None:
        clock.passes += 1
        clock.submitted += submitted
        clock.waited += waited
