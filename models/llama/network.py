"""Small networks that are not llama.cpp models: fixed graphs of ggml operations, on a GPU or the CPU."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.parse import TensorInfo
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import read_stored, read_tensor
from slipstream.models.llama.ggml import CPU, F32, InitParams, Operations, SetThreads, Tensor, calls, own_gpus
from slipstream.models.outside import quoted, shown_path
from slipstream.models.types import Floats

_MOST_NODES: Final = 256  # maximum tensors of one graph
_OTHER: Final = "Choose another drafter."
Build = Callable[[Operations, Mapping[str, Tensor], int], None]
"""Builds the graph for a number of rows from named weights; calls ``input`` and ``output`` at least once each."""


@dataclass(frozen=True, slots=True)
class _Graph:
    context: int
    pointer: int
    ends: Operations


class Network:
    """Weights on a device, and a graph on them for each requested number of rows.

    The device is a GPU of this machine that supports all operations of the graph, else the CPU. Buffers on the CPU
    never use AMX, which some compilers miscompile (see ``library.model_params``).
    """

    def __init__(
        self, header: Header, weights: Mapping[str, Sequence[str]], build: Build, threads: Callable[[], int]
    ) -> None:
        """Uploads weights as they are stored.

        Args:
            weights: Name to the m tensors of the file to stack, all of one shape and type: matrices [d, v] become
                [d, v, m] in the same type, vectors [d] become [d, 1, m] in float32.
            threads: Returns the number of threads on a CPU; called before every run.
        """
        self._ggml, self._build, self._threads = calls(), build, threads
        self._threads_in_use = 0
        self._graphs: dict[int, _Graph] = {}
        self._opened = ExitStack()
        self._free = weakref.finalize(self, self._opened.close)  # runs even if ``close`` is not called
        self._free.atexit = False
        try:
            self._load(header, {name: _stack(header, names) for name, names in weights.items()})
        except BaseException:
            self.close()
            raise

    def run(self, *inputs: Floats) -> list[NDArray[Any]]:
        """Runs the graph of the inputs' number of rows; the next run with as many rows overwrites the outputs."""
        ggml, rows = self._ggml, inputs[0].shape[1]
        graph = self._graphs.get(rows) or self._prepare(rows)
        for (tensor, shape), values in zip(graph.ends.inputs, inputs, strict=True):
            if values.shape[::-1] != shape:
                raise ValueError(f"an input is {values.shape}, not {shape[::-1]}")
            values = np.ascontiguousarray(values, np.float32)
            ggml.backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)
        threads = self._threads()
        if self._set_threads and threads != self._threads_in_use:
            self._set_threads(self._backend, threads)
            self._threads_in_use = threads
        status = ggml.backend_graph_compute(self._backend, graph.pointer)
        if status:
            raise SlipstreamError(f"{self.device} failed on the drafting heads (ggml: {status}).", _OTHER)
        for tensor, found in graph.ends.outputs:
            ggml.backend_tensor_get(tensor, found.ctypes.data, 0, found.nbytes)
        return [found for _, found in graph.ends.outputs]

    def close(self) -> None:
        """Frees the graphs, the weights and the device; the network must not be used after."""
        self._graphs.clear()
        self._free()

    def _load(self, header: Header, stacks: Mapping[str, list[TensorInfo]]) -> None:
        ggml = self._ggml
        context = self._context(len(stacks) * ggml.tensor_overhead(), self._opened)
        self._weights: dict[str, Tensor] = {}
        for name, stack in stacks.items():
            width, *height = stack[0].shape
            self._weights[name] = ggml.new_tensor_3d(
                context, stack[0].type if height else F32, width, height[0] if height else 1, len(stack)
            )
        device = self._device()
        self.device = ggml.backend_dev_description(device).decode("utf-8", "replace")
        self._backend = ggml.backend_dev_init(device, None)
        if not self._backend:
            raise SlipstreamError(f"{self.device} cannot be used for drafting heads.", _OTHER)
        self._opened.callback(ggml.backend_free, self._backend)
        registry = ggml.backend_dev_backend_reg(device)
        address = ggml.backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
        self._set_threads = SetThreads(address) if address else None  # a GPU has no such function
        self._allocate(context)
        for name, stack in stacks.items():
            offset = 0
            for tensor in stack:
                values = read_stored(header, tensor) if len(tensor.shape) > 1 else read_tensor(header, tensor)
                ggml.backend_tensor_set(self._weights[name], values.ctypes.data, offset, values.nbytes)
                offset += values.nbytes

    def _device(self) -> int:
        ggml = self._ggml
        with ExitStack() as opened:
            graph = self._describe(1, opened).pointer
            nodes = [ggml.graph_node(graph, place) for place in range(ggml.graph_n_nodes(graph))]
            for device in (*own_gpus(), ggml.backend_dev_by_type(CPU)):
                if device and all(ggml.backend_dev_supports_op(device, node) for node in nodes):
                    return int(device)
        raise SlipstreamError("no device of this computer can run the drafting heads.", _OTHER)

    def _prepare(self, rows: int) -> _Graph:
        graph = self._describe(rows, self._opened)
        self._allocate(graph.context)
        self._graphs[rows] = graph
        return graph

    def _describe(self, rows: int, opened: ExitStack) -> _Graph:
        ggml = self._ggml
        size = _MOST_NODES * ggml.tensor_overhead() + ggml.graph_overhead_custom(_MOST_NODES, False)
        context = self._context(size, opened)
        operations = Operations(context)
        self._build(operations, self._weights, rows)
        pointer: int = ggml.new_graph_custom(context, _MOST_NODES, False)
        for tensor, _ in operations.outputs:
            ggml.build_forward_expand(pointer, tensor)
        return _Graph(context, pointer, operations)

    def _context(self, size: int, opened: ExitStack) -> int:
        """A ggml context for tensors whose data is stored elsewhere; freed with ``opened``."""
        context = self._ggml.init(InitParams(size, None, True))
        if not context:
            raise _no_memory()
        opened.callback(self._ggml.free, context)
        return int(context)

    def _allocate(self, context: int) -> None:
        buffer = self._ggml.backend_alloc_ctx_tensors(context, self._backend)
        if not buffer:
            raise _no_memory()
        self._opened.callback(self._ggml.backend_buffer_free, buffer)


def _stack(header: Header, names: Sequence[str]) -> list[TensorInfo]:
    stack = [header.by_name[name] for name in names]
    for tensor in stack:
        if (tensor.shape, tensor.type) != (stack[0].shape, stack[0].type):
            raise ModelFileError(
                f"{shown_path(header.path)}: {quoted(tensor.name)} is stored otherwise than {quoted(names[0])}.",
                "Train or import the heads again.",
            )
    return stack


def _no_memory() -> SlipstreamError:
    return SlipstreamError("there is not enough memory for the drafting heads.", _OTHER)
