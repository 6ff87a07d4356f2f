"""What a pass over several rows costs, by the type of the weights: it decides whether drafting can gain.

A type is multiplied by several rows at once, or row by row: that depends on the processor or GPU and on llama.cpp.
Small products of each type show it. On a processor one thread computes them, since other programs then seldom disturb
one; a pass of all threads takes as much less time, but never less than the memory needs to deliver the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import count
from math import inf
from time import perf_counter, process_time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from slipstream.models.gguf.parse import TENSOR_TYPES

if TYPE_CHECKING:
    from slipstream.models.llama.ggml import Tensor

RowTimes = Mapping[str, Mapping[int, float]]
"""By the name of a type and the number of rows: nanoseconds per byte of weights, with all threads."""
ROWS: Final = (1, 2, 4, 8, 16)
LITTLE: Final = 1.0  # a gain of a good step below this: most steps lose
WORTH: Final = 1.15  # least gain of a good step of a type that is preferred to one that gains little
GOOD_TOKENS, GOOD_ROWS = 3.0, 4
"""Tokens and rows of a good step: what cannot gain even from such steps is neither advised nor tried."""
_FASTER: Final = 1.1  # least gain of another type over the file's own, each with drafting
_COMMON: Final = ("Q4_0", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "BF16", "F16")
"""Types in which most models are offered, smallest first."""
_MEASURED: Final = (*_COMMON, "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4")
_SHAPE: Final = (2048, 64)  # columns, and the unit of the height
_EACH: Final = MappingProxyType({"cpu": 2 << 20, "gpu": 64 << 20})  # bytes of one matrix: its product is short
_MATRICES: Final = MappingProxyType({"cpu": 32, "gpu": 4})  # together larger than the caches
_SECONDS: Final = 0.1
_LEAST: Final = 24  # products of each number of rows
_KNOWN: Final = 0.9  # least share of a file's bytes whose types are measured


class Products:
    """Times products of matrices on a device, as a model computes them."""

    def __init__(self, kind: str, opened: ExitStack, threads: int) -> None:
        """Opens a device, which ``opened`` closes; raises ``LookupError`` if there is none."""
        from slipstream.models.llama import ggml

        self._ggml, self._calls, self.kind = ggml, ggml.calls(), kind  # ``kind``: "gpu" or "cpu"
        calls = self._calls
        numbers = (ggml.GPU, ggml.INTEGRATED_GPU) if kind == "gpu" else (ggml.CPU,)
        device = next((found for number in numbers if (found := calls.backend_dev_by_type(number))), None)
        self._backend = calls.backend_dev_init(device, None) if device else None
        if not self._backend:
            raise LookupError(kind)
        opened.callback(calls.backend_free, self._backend)
        self._threads = 0  # of a GPU, whose disturbances are unknown
        registry = calls.backend_dev_backend_reg(device)
        address = calls.backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
        if kind == "cpu" and address:
            self._threads = threads
            ggml.SetThreads(address)(self._backend, threads)
        self.share = 1.0  # processor time of all threads during the latest products, as a share; 1 for a GPU

    def seconds(
        self, kind: int, shape: tuple[int, int], matrices: int, rows: tuple[int, ...], seconds: float, least: int = 1
    ) -> dict[int, float]:
        """The least time of a product by its rows.

        Args:
            kind: ``ggml_type`` of the weights.
            matrices: Their number; the products take one after the other.
            seconds: How long to measure, but for ``least`` products of each number of rows.

        Raises:
            LookupError: If the device cannot store or multiply such matrices.
        """
        import numpy as np

        from slipstream.models.llama.repack import buffer_type, gains

        calls = self._calls
        with ExitStack() as opened:
            repacked = self.kind == "cpu" and gains(kind, shape)  # as in a model that llama.cpp loads
            context = self._context(matrices, opened)
            weights = [calls.new_tensor_3d(context, kind, *shape, 1) for _ in range(matrices)]
            self._store(context, opened, buffer_type() if repacked else None)
            zeros = np.zeros(calls.nbytes(weights[0]), np.uint8)  # the time does not depend on the values
            for weight in weights:
                calls.backend_tensor_set(weight, zeros.ctypes.data, 0, zeros.nbytes)
            graphs = {number: self._graphs(weights, shape[0], number, opened) for number in rows}
            best, turns, began, worked = dict.fromkeys(rows, inf), count(), perf_counter(), process_time()
            for turn in count():
                if turn >= least and (took := perf_counter() - began) > seconds:
                    if self._threads:
                        self.share = (process_time() - worked) / took / self._threads
                    return best
                for number in rows:
                    graph = graphs[number][next(turns) % matrices]
                    start = perf_counter()
                    if calls.backend_graph_compute(self._backend, graph):
                        raise LookupError(kind)
                    best[number] = min(best[number], perf_counter() - start)
        raise AssertionError  # ``count`` does not end

    def _graphs(self, weights: list[Tensor], columns: int, rows: int, opened: ExitStack) -> list[int]:
        calls, graphs = self._calls, list[int]()
        context = self._context(4 * len(weights), opened, graphs=len(weights))
        operations = self._ggml.Operations(context)
        states = operations.input(columns, rows, 1)
        for weight in weights:
            graphs.append(calls.new_graph_custom(context, 4, False))
            calls.build_forward_expand(graphs[-1], operations.multiply(weight, states))
        self._store(context, opened)
        return graphs

    def _context(self, tensors: int, opened: ExitStack, graphs: int = 0) -> int:
        calls = self._calls
        size = tensors * calls.tensor_overhead() + graphs * calls.graph_overhead_custom(4, False)
        found: int = calls.init(self._ggml.InitParams(size, None, True))
        opened.callback(calls.free, found)
        return found

    def _store(self, context: int, opened: ExitStack, where: int | None = None) -> None:
        calls = self._calls
        buffer = (
            calls.backend_alloc_ctx_tensors_from_buft(context, where)
            if where
            else calls.backend_alloc_ctx_tensors(context, self._backend)
        )
        if not buffer:
            raise LookupError(context)
        opened.callback(calls.backend_buffer_free, buffer)


def measure_rows(kind: str, threads: int) -> dict[str, dict[int, float]]:
    """Measures all types that a device ("gpu" or "cpu") can multiply, in about 0.2 s each; see ``RowTimes``."""
    found = dict[str, dict[int, float]]()
    with ExitStack() as opened:
        products = Products(kind, opened, 1)
        for number, (name, block, size) in TENSOR_TYPES.items():
            if name not in _MEASURED:
                continue
            columns, unit = _SHAPE
            height = max(1, _EACH[kind] * block // size // columns // unit) * unit
            with suppress(LookupError):
                shape, counted = (columns, height), _MATRICES[kind]
                times = products.seconds(number, shape, counted, ROWS, seconds=_SECONDS, least=_LEAST)
                weight_bytes = columns * height * size // block * (threads if kind == "cpu" else 1)
                found[name] = {rows: 1e9 * took / weight_bytes for rows, took in times.items()}
    return found


def type_of(label: str) -> str:
    """The type of most weights of a quantization: ``Q4_K`` of ``UD-Q4_K_XL``; empty if it is not measured."""
    plain = label.upper().removeprefix("UD-")
    return next((name for name in sorted(_MEASURED, key=len, reverse=True) if plain.startswith(name)), "")


def pass_costs(weights: Mapping[str, float], times: RowTimes) -> dict[int, float]:
    """What a pass costs by its rows, in passes of one row; empty if too few of its bytes are of measured types."""
    known = {name: size for name, size in weights.items() if name in times}
    if not known or sum(known.values()) < _KNOWN * sum(weights.values()):
        return {}
    took = {rows: sum(size * times[name][rows] for name, size in known.items()) for rows in ROWS}
    most, costs = 1.0, dict[int, float]()
    for rows in ROWS:
        costs[rows] = most = max(most, took[rows] / took[1])
    return costs


def best_gain(costs: Mapping[int, float]) -> float:
    """The gain over plain decoding of a good step, which writes 3 tokens with 4 rows; 0 if the cost is unknown.

    It is a little more in small models, where a large part of a pass is the same for any number of rows.
    """
    return GOOD_TOKENS / costs[GOOD_ROWS] if GOOD_ROWS in costs else 0.0


def better_types(weights: Mapping[str, float], times: RowTimes) -> list[str]:
    """Types of the same model that would gain from drafting, if these weights gain little; the smallest first.

    They are also faster in all: a good step takes less time for each weight.
    """
    costs = pass_costs(weights, times)
    if not costs or best_gain(costs) >= LITTLE:
        return []
    bytes_of = {name: size / block for name, block, size in TENSOR_TYPES.values()}
    count_of = sum(size / bytes_of[name] for name, size in weights.items() if name in times)
    own = sum(size * times[name][GOOD_ROWS] for name, size in weights.items() if name in times) / count_of
    return [
        name
        for name in _COMMON
        if name in times
        and best_gain(pass_costs({name: 1.0}, times)) >= WORTH
        and _FASTER * times[name][GOOD_ROWS] * bytes_of[name] < own
    ]
