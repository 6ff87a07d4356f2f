"""Predicts tokens a second: the best bandwidth ever measured on this machine over the bytes that a token reads.

Decoding reads every weight once per token, so memory bandwidth limits its speed. One row times a matrix that is too
large for the caches measures it. Other programs can only make a reading smaller, so the best one counts. Small models
and quantizations that cost arithmetic stay below the prediction; with a drafter nothing is predicted.

It is measured in a separate process: a GPU driver takes memory in each process, and may crash it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from time import perf_counter, process_time
from types import MappingProxyType
from typing import Final, Literal

from slipstream.models.child import end_with_parent, run_child
from slipstream.models.gguf.architectures import EXPERTS
from slipstream.models.gguf.reader import Header
from slipstream.models.memory.fit import Fit

_CACHED: Final = 32 << 20  # bytes that may fit in a last-level cache, where memory bandwidth does not matter
_EXPERTS: Final = re.compile(EXPERTS)
_Q8_0, _BITS, _COLUMNS = 8, 8.5, 4096  # ``ggml_type``, bits per weight and columns of the matrix
_BYTES: Final = MappingProxyType({"cpu": 80 << 20, "gpu": 256 << 20})
"""Bytes of the matrix: larger than the last-level cache of most machines."""
_SECONDS: Final = 0.4
_PATIENCE_S: Final = 120.0  # seconds that the process may take
_USUAL_CORE, _USUAL_MOST, _USUAL_GPU = 8e9, 40e9, 250e9
"""Typical memory bandwidth of one core, of all cores, and of a GPU, in bytes per second."""
_UNDISTURBED: Final = 0.7
"""Least share of the processor time of all threads; measured: 0.9 undisturbed, 0.3 beside two other programs."""

Basis = Literal["measured", "busy", "assumed"]
"""Where a figure is from: measured, measured while other programs used the processor, or typical of such machines."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The memory bandwidth of a device."""

    kind: str  # "gpu" or "cpu"
    bytes_per_s: float
    basis: Basis = "measured"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted speed of a model without a drafter."""

    tok_per_s: float  # at most: a token takes more than the reading of its weights
    basis: Basis = "measured"  # the less certain one of its devices


def bytes_read(header: Header) -> float:
    """Bytes of weights that a token reads: the experts that it uses, and the embedding only if it is the output too."""
    used, count = (header.number(f"expert_{name}") or 0 for name in ("used_count", "count"))
    tied = all(tensor.name != "output.weight" for tensor in header.tensors)
    total = 0.0
    for tensor in header.tensors:
        if tensor.name.startswith("per_layer_token_embd") or (tensor.name == "token_embd.weight" and not tied):
            continue  # only single rows are read
        total += tensor.nbytes * (used / count if count and _EXPERTS.search(tensor.name) else 1.0)
    return total


def predict(read: float, fit: Fit, machine: Sequence[Bandwidth]) -> Prediction | None:
    """Predicts the speed of a model.

    Args:
        read: Bytes of weights that a token reads.

    Returns:
        The prediction; None if the model is too big, if it fits in a cache, or if its device was not measured.
    """
    if read < _CACHED or fit.verdict == "too big":
        return None
    share = {"gpu": 1.0, "memory": 0.0}.get(fit.verdict, fit.need.gpu / max(1, fit.need.total))
    places = {kind: part for kind, part in (("gpu", share), ("cpu", 1 - share)) if part}
    used = {each.kind: each for each in machine if each.kind in places}
    if used.keys() != places.keys():
        return None
    seconds = sum(part * read / used[kind].bytes_per_s for kind, part in places.items())
    bases = {each.basis for each in used.values()}
    uncertain: tuple[Basis, ...] = ("assumed", "busy")
    return Prediction(1 / seconds, next((basis for basis in uncertain if basis in bases), "measured"))


def assumed(cores: int, gpu: bool) -> list[Bandwidth]:
    """Typical values of a processor, and of a GPU if there is one, for use until they are measured."""
    found = [Bandwidth("cpu", min(_USUAL_MOST, _USUAL_CORE * cores), "assumed")]
    return [*found, Bandwidth("gpu", _USUAL_GPU, "assumed")] if gpu else found


def bandwidth() -> list[Bandwidth]:
    """Measures the GPU, if llama.cpp has one, and the processor; empty if the measuring process fails."""
    try:
        done = run_child(["-m", "slipstream.models.memory.speed"], _PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return unpacked(done.stdout.decode("utf-8", "replace"))


def packed(found: Sequence[Bandwidth]) -> str:
    """The measurements as JSON, on one line."""
    return json.dumps({"bandwidth": [asdict(each) for each in found]})


def unpacked(text: str) -> list[Bandwidth]:
    """Reads the last line that ``packed`` wrote; empty if there is none."""
    for line in reversed(text.splitlines()):  # a driver may print before and after
        try:
            return [
                Bandwidth(
                    str(each["kind"]), float(each["bytes_per_s"]), "busy" if each["basis"] == "busy" else "measured"
                )
                for each in json.loads(line)["bandwidth"]
            ]
        except (ValueError, LookupError, TypeError):
            continue
    return []


def measure(kind: str) -> Bandwidth | None:
    """Measures in this process.

    Args:
        kind: "gpu" or "cpu".

    Returns:
        The bandwidth; None if there is no such device, or if it cannot store or multiply the matrix.
    """
    import numpy as np

    from slipstream.models.llama import ggml
    from slipstream.models.llama.library import physical_cores
    from slipstream.models.llama.repack import buffer_type, gains

    calls = ggml.calls()
    numbers = (ggml.GPU, ggml.INTEGRATED_GPU) if kind == "gpu" else (ggml.CPU,)
    device = next((found for number in numbers if (found := calls.backend_dev_by_type(number))), None)
    backend = calls.backend_dev_init(device, None) if device else None
    if not backend:
        return None
    with ExitStack() as opened:
        opened.callback(calls.backend_free, backend)
        threads = 0  # of a GPU, whose disturbances are unknown
        address = calls.backend_reg_get_proc_address(
            calls.backend_dev_backend_reg(device), b"ggml_backend_set_n_threads"
        )
        if kind == "cpu" and address:
            threads = physical_cores()
            ggml.SetThreads(address)(backend, threads)  # as a model does
        height = int(_BYTES[kind] * 8 / _BITS) // _COLUMNS // 64 * 64

        def context(tensors: int) -> int:
            size = tensors * calls.tensor_overhead() + calls.graph_overhead_custom(tensors, False)
            found: int = calls.init(ggml.InitParams(size, None, True))
            opened.callback(calls.free, found)
            return found

        def stored(found: int | None) -> bool:
            if found:
                opened.callback(calls.backend_buffer_free, found)
            return bool(found)

        weights, graphs = context(2), context(8)
        weight = calls.new_tensor_3d(weights, _Q8_0, _COLUMNS, height, 1)
        repacked = kind == "cpu" and gains(_Q8_0, (_COLUMNS, height))  # as in a model that llama.cpp loads
        if not stored(
            calls.backend_alloc_ctx_tensors_from_buft(weights, buffer_type())
            if repacked
            else calls.backend_alloc_ctx_tensors(weights, backend)
        ):
            return None
        zeros = np.zeros(calls.nbytes(weight), np.uint8)  # the time does not depend on the values
        calls.backend_tensor_set(weight, zeros.ctypes.data, 0, zeros.nbytes)
        operations = ggml.Operations(graphs)
        operations.output(operations.multiply(weight, operations.input(_COLUMNS, 1, 1)), np.float32, height, 1, 1)
        graph = calls.new_graph_custom(graphs, 8, False)
        for tensor, _ in operations.outputs:
            calls.build_forward_expand(graph, tensor)
        if not stored(calls.backend_alloc_ctx_tensors(graphs, backend)):
            return None
        best, began, worked = float("inf"), perf_counter(), process_time()
        while perf_counter() < began + _SECONDS or best == float("inf"):
            start = perf_counter()
            if calls.backend_graph_compute(backend, graph):
                return None
            best = min(best, perf_counter() - start)
        quiet = process_time() - worked >= _UNDISTURBED * threads * (perf_counter() - began)
        return Bandwidth(kind, zeros.nbytes / best, "measured" if quiet else "busy")


if __name__ == "__main__":
    end_with_parent()
    print(packed([found for kind in ("gpu", "cpu") if (found := measure(kind))]))
