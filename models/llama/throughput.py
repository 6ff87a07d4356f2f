"""Measures the speed of matrix products on this machine once, to predict the speed of models.

Decoding reads every weight once per token, so its speed is limited by memory bandwidth or, with few cores, by the
arithmetic of the quantization. Multiplying one row by a matrix too large for the caches measures both limits. Products
with more rows measure the cost of verifying several tokens in a pass.

It runs in a separate process: a GPU driver takes memory in each process, and may crash it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter, process_time
from types import MappingProxyType
from typing import Any, Final, Literal

TYPES: Final[Mapping[str, tuple[int, float]]] = MappingProxyType(
    {"Q4_0": (2, 4.5), "Q4_K": (12, 4.5), "Q6_K": (14, 6.5625), "Q8_0": (8, 8.5), "BF16": (30, 16.0)}
)
"""Measured file types: ``ggml_type`` and bits per weight."""
ROWS: Final = (1, 2, 4, 8)  # rows of the products
_COLUMNS: Final = 4096
_BYTES: Final = MappingProxyType({"cpu": 80 << 20, "gpu": 256 << 20})
"""Bytes of a matrix: larger than the last-level cache of most machines."""
_SECONDS: Final = 0.05
_RUNS: Final = 3
"""Minimum time and minimum number of runs of each product in a round."""
_ROUNDS: Final = 3
"""Rounds over all products: the median ignores a short disturbance."""
_CHAIN, _SMALL = 100, 256
"""Number of products in a chain, and the rows and columns of their matrix."""
_USUAL_CORE, _USUAL_MOST, _USUAL_GPU = 8e9, 40e9, 250e9
"""Typical memory bandwidth of one core, of all cores, and of a GPU, in bytes per second."""
_PATIENCE: Final = 120.0
"""Seconds that the process may take."""
_UNDISTURBED: Final = 0.7
"""Least share of the processor time of all threads; measured: 0.9 undisturbed, 0.3 beside two other programs."""

Basis = Literal["measured", "busy", "assumed"]
"""Where figures are from: measured, measured while other programs used the processor, or typical of such machines."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """The measurements of a device."""

    kind: str  # "gpu" or "cpu"
    rates: dict[str, dict[int, float]]  # by file type and rows of a product: bytes of weights per second
    operation: float  # seconds of a product with a matrix that fits in a cache
    basis: Basis = "measured"


def assumed(cores: int, gpu: bool) -> list[Throughput]:
    """Typical values of a processor, and of a GPU if there is one, for use until they are measured."""
    slow = min(_USUAL_MOST, _USUAL_CORE * cores)
    found = [Throughput("cpu", {name: {1: slow, 2: slow, 4: slow / 2, 8: slow / 3} for name in TYPES}, 4e-6, "assumed")]
    if gpu:
        found.append(Throughput("gpu", {name: dict.fromkeys(ROWS, _USUAL_GPU) for name in TYPES}, 4e-6, "assumed"))
    return found


def throughput() -> list[Throughput]:
    """Measures the GPU, if llama.cpp has one, and the processor; empty if the measuring process fails."""
    command = [sys.executable, "-m", "slipstream.models.llama.throughput"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return []
    return unpacked(done.stdout.decode("utf-8", "replace"))


def packed(found: list[Throughput]) -> str:
    """The measurements as JSON, on one line."""
    return json.dumps({"throughput": [asdict(each) for each in found]})


def unpacked(text: str) -> list[Throughput]:
    """Reads the last line that ``packed`` wrote; empty if there is none."""
    for line in reversed(text.splitlines()):  # a driver may print before and after
        try:
            return [_unpacked(each) for each in json.loads(line)["throughput"]]
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return []


def _unpacked(found: Mapping[str, Any]) -> Throughput:
    rates = {str(name): {int(n): float(rate) for n, rate in rows.items()} for name, rows in found["rates"].items()}
    basis: Basis = "busy" if found.get("basis") == "busy" else "measured"
    return Throughput(str(found["kind"]), rates, float(found["operation"]), basis)


class _Meter:
    """Adds up the time of all products, to tell whether other programs used the processor meanwhile."""

    def __init__(self, threads: int) -> None:
        """Begins.

        Args:
            threads: Number of threads that compute; 0 for a GPU, whose disturbances are unknown.
        """
        self._threads, self._seconds, self._processor = threads, 0.0, 0.0

    def add(self, seconds: float, processor: float) -> None:
        self._seconds += seconds
        self._processor += processor

    @property
    def basis(self) -> Basis:
        return "busy" if self._processor < _UNDISTURBED * self._threads * self._seconds else "measured"


def measure(kind: str) -> Throughput | None:
    """Measures in this process.

    Args:
        kind: "gpu" or "cpu".

    Returns:
        The measurements; None if there is no such device.

    Raises:
        SlipstreamError: If this llama.cpp lacks a function that is needed.
    """
    from slipstream.models.llama import ggml

    calls = ggml.calls()
    numbers = (ggml.GPU, ggml.INTEGRATED_GPU) if kind == "gpu" else (ggml.CPU,)
    device = next((found for number in numbers if (found := calls.backend_dev_by_type(number))), None)
    if device is None:
        return None
    backend = calls.backend_dev_init(device, None)
    if not backend:
        return None
    with ExitStack() as opened:
        opened.callback(calls.backend_free, backend)
        meter = _Meter(_use_threads(backend, device) if kind == "cpu" else 0)
        rounds = [_round(backend, kind, meter) for _ in range(_ROUNDS)]
        rates = {
            name: {rows: median(each.rates[name][rows] for each in rounds) for rows in ROWS}
            for name in TYPES
            if all(name in each.rates for each in rounds)
        }
        return Throughput(kind, rates, median(each.operation for each in rounds), meter.basis)


def _round(backend: int, kind: str, meter: _Meter) -> Throughput:
    rates = {}
    for name, (number, bits) in TYPES.items():
        height = int(_BYTES[kind] * 8 / bits) // _COLUMNS // 64 * 64
        if found := _products(backend, kind, number, height, meter):
            size = _COLUMNS * height * bits / 8
            rates[name] = {rows: size / seconds for rows, seconds in found.items()}
    return Throughput(kind, rates, _chain(backend, meter))


def _use_threads(backend: int, device: int) -> int:
    """Uses every core, as a model does; returns the number of threads, 0 if it is unknown."""
    from slipstream.models.llama import ggml
    from slipstream.models.llama.library import physical_cores

    calls = ggml.calls()
    registry = calls.backend_dev_backend_reg(device)
    address = calls.backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
    if not address:
        return 0
    ggml.SetThreads(address)(backend, physical_cores())
    return physical_cores()


def _products(backend: int, kind: str, number: int, height: int, meter: _Meter) -> dict[int, float]:
    """Seconds of a product by its number of rows; empty if the device cannot store the matrix or compute it."""
    import numpy as np

    from slipstream.models.llama import ggml
    from slipstream.models.llama.repack import buffer_type, gains

    calls = ggml.calls()
    with ExitStack() as opened:
        context = calls.init(ggml.InitParams(2 * calls.tensor_overhead(), None, True))
        opened.callback(calls.free, context)
        weight = calls.new_tensor_3d(context, number, _COLUMNS, height, 1)
        repacked = kind == "cpu" and gains(number, (_COLUMNS, height))  # as in a model that llama.cpp loads
        buffer = (
            calls.backend_alloc_ctx_tensors_from_buft(context, buffer_type())
            if repacked
            else calls.backend_alloc_ctx_tensors(context, backend)
        )
        if not buffer:
            return {}
        opened.callback(calls.backend_buffer_free, buffer)
        zeros = np.zeros(calls.nbytes(weight), np.uint8)  # the time does not depend on the values
        calls.backend_tensor_set(weight, zeros.ctypes.data, 0, zeros.nbytes)
        del zeros
        found = {}
        for rows in ROWS:

            def build(operations: ggml.Operations, rows: int = rows) -> None:
                product = operations.multiply(weight, operations.input(_COLUMNS, rows, 1))
                operations.output(product, np.float32, height, rows, 1)

            seconds = _time(backend, build, meter)
            if seconds is None:
                return {}
            found[rows] = seconds
        return found


def _chain(backend: int, meter: _Meter) -> float:
    """Seconds per product in a chain of small products."""
    import numpy as np

    from slipstream.models.llama import ggml

    def build(operations: ggml.Operations) -> None:
        matrix, values = operations.input(_SMALL, _SMALL, 1), operations.input(_SMALL, 1, 1)
        for _ in range(_CHAIN):
            values = operations.multiply(matrix, values)
        operations.output(values, np.float32, _SMALL, 1, 1)

    return (_time(backend, build, meter) or 0.0) / _CHAIN


def _time(backend: int, build: Callable[[Any], None], meter: _Meter) -> float | None:
    """Median seconds of several runs of a graph; None if the device cannot store or compute it."""
    import numpy as np

    from slipstream.models.llama import ggml

    calls = ggml.calls()
    with ExitStack() as opened:
        nodes = 2 * _CHAIN
        size = nodes * calls.tensor_overhead() + calls.graph_overhead_custom(nodes, False)
        context = calls.init(ggml.InitParams(size, None, True))
        opened.callback(calls.free, context)
        operations = ggml.Operations(context)
        build(operations)
        graph = calls.new_graph_custom(context, nodes, False)
        for tensor, _ in operations.outputs:
            calls.build_forward_expand(graph, tensor)
        buffer = calls.backend_alloc_ctx_tensors(context, backend)
        if not buffer:
            return None
        opened.callback(calls.backend_buffer_free, buffer)
        for tensor, shape in operations.inputs:
            values = np.ones(shape[::-1], np.float32)
            calls.backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)
        took: list[float] = []
        until = perf_counter() + _SECONDS
        while len(took) < _RUNS or perf_counter() < until:
            began, processor = perf_counter(), process_time()
            if calls.backend_graph_compute(backend, graph):
                return None
            took.append(perf_counter() - began)
            meter.add(took[-1], process_time() - processor)
        return median(took)  # the median: the best time is not typical of a pass


if __name__ == "__main__":
    print(packed([found for kind in ("gpu", "cpu") if (found := measure(kind))]))
