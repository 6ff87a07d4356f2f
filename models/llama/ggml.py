"""The ggml library in this process: its functions and devices, and graphs of its operations.

Interface: ggml.h and ggml-backend.h of github.com/ggml-org/llama.cpp, vendored by llama-cpp-python 0.3.36 (ggml 0.25).
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.install import without_rpc

Tensor = int  # address of a tensor in one of ggml's contexts
F32: Final = 0  # ggml_type
CPU: Final = 0  # ggml_backend_dev_type
GPU: Final = 1
INTEGRATED_GPU: Final = 2
_P: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_size_t
_I64: Final = ctypes.c_int64
_INT: Final = ctypes.c_int
SetThreads: Final = ctypes.CFUNCTYPE(None, _P, _INT)  # ``ggml_backend_set_n_threads_t``
_RPC: Final[Mapping[str, Any]] = {
    "add_server": ctypes.CFUNCTYPE(_P, ctypes.c_char_p),
    "start_server": ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, _SIZE, _SIZE, ctypes.POINTER(_P)),
}
"""``ggml_backend_rpc_add_server(endpoint)``, and ``start_server(endpoint, cache, threads, n_devices, devices)``."""


class InitParams(ctypes.Structure):
    """``struct ggml_init_params``: size, address (None: ggml allocates), and whether tensors get no memory yet."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


_CALLS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "init": (_P, (InitParams,)),
    "free": (None, (_P,)),
    "tensor_overhead": (_SIZE, ()),
    "graph_overhead_custom": (_SIZE, (_SIZE, ctypes.c_bool)),
    "new_graph_custom": (_P, (_P, _SIZE, ctypes.c_bool)),
    "build_forward_expand": (None, (_P, _P)),
    "graph_n_nodes": (_INT, (_P,)),
    "graph_node": (_P, (_P, _INT)),
    "new_tensor_3d": (_P, (_P, _INT, _I64, _I64, _I64)),
    "nbytes": (_SIZE, (_P,)),
    "get_type_traits": (_P, (_INT,)),
    "quantize_chunk": (_SIZE, (_INT, _P, _P, _I64, _I64, _I64, _P)),
    "set_input": (None, (_P,)),
    "set_output": (None, (_P,)),
    "mul_mat": (_P, (_P, _P, _P)),
    "add": (_P, (_P, _P, _P)),
    "silu": (_P, (_P, _P)),
    "soft_max": (_P, (_P, _P)),
    "top_k": (_P, (_P, _P, _INT)),
    "get_rows": (_P, (_P, _P, _P)),
    "reshape_3d": (_P, (_P, _P, _I64, _I64, _I64)),
    "backend_dev_count": (_SIZE, ()),
    "backend_dev_get": (_P, (_SIZE,)),
    "backend_dev_name": (ctypes.c_char_p, (_P,)),
    "backend_dev_type": (_INT, (_P,)),
    "backend_dev_memory": (None, (_P, _P, _P)),
    "backend_dev_get_props": (None, (_P, _P)),
    "backend_reg_count": (_SIZE, ()),
    "backend_reg_get": (_P, (_SIZE,)),
    "backend_reg_name": (ctypes.c_char_p, (_P,)),
    "backend_reg_by_name": (_P, (ctypes.c_char_p,)),
    "backend_reg_dev_count": (_SIZE, (_P,)),
    "backend_reg_dev_get": (_P, (_P, _SIZE)),
    "backend_register": (None, (_P,)),
    "backend_dev_by_type": (_P, (_INT,)),
    "backend_dev_by_name": (_P, (ctypes.c_char_p,)),
    "backend_dev_init": (_P, (_P, ctypes.c_char_p)),
    "backend_dev_description": (ctypes.c_char_p, (_P,)),
    "backend_dev_supports_op": (ctypes.c_bool, (_P, _P)),
    "backend_dev_backend_reg": (_P, (_P,)),
    "backend_reg_get_proc_address": (_P, (_P, ctypes.c_char_p)),
    "backend_buft_name": (ctypes.c_char_p, (_P,)),
    "backend_cpu_buffer_type": (_P, ()),
    "backend_buft_alloc_buffer": (_P, (_P, _SIZE)),
    "backend_free": (None, (_P,)),
    "backend_alloc_ctx_tensors": (_P, (_P, _P)),
    "backend_alloc_ctx_tensors_from_buft": (_P, (_P, _P)),
    "backend_buffer_free": (None, (_P,)),
    "backend_tensor_set": (None, (_P, _P, _SIZE, _SIZE)),
    "backend_tensor_get": (None, (_P, _P, _SIZE, _SIZE)),
    "backend_graph_compute": (_INT, (_P, _P)),
}
"""Name of each function without ``ggml_``, its result type, and its argument types."""


@cache
def calls() -> Any:
    """Finds ggml's functions in the library that llama.cpp itself uses, as attributes named without ``ggml_``.

    A wheel contains that library under several names; loading it by another name would create a second ggml in this
    process. A lookup in llama.cpp's own library also finds the symbols of linked libraries, except on Windows.
    """
    folder = Path(C._lib._name).parent
    linked = [folder / f"{name}.dll" for name in ("ggml-base", "ggml", "libggml-base", "libggml")]
    libraries = [C._lib, *(ctypes.CDLL(str(path)) for path in linked if path.exists())]
    found = SimpleNamespace()
    for name, (result, arguments) in _CALLS.items():
        library = next((library for library in libraries if hasattr(library, f"ggml_{name}")), None)
        if library is None:
            raise SlipstreamError(
                f"the installed llama.cpp has no ggml_{name}, which Slipstream needs.",
                "Install the version that Slipstream asks for: pip install llama-cpp-python==0.3.36",
            )
        call = getattr(library, f"ggml_{name}")
        call.restype, call.argtypes = result, arguments
        setattr(found, name, call)
    return found


class _Properties(ctypes.Structure):
    """The beginning of ``struct ggml_backend_dev_props``; ``rest`` reserves space for its other fields."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", _SIZE),
        ("memory_total", _SIZE),
        ("type", _INT),
        ("device_id", ctypes.c_char_p),
        ("rest", ctypes.c_uint8 * 64),
    )


def own_devices() -> list[int]:
    """Handles of this machine's devices, without those of RPC; a device that two backends list appears once."""
    ggml = calls()
    lent = ggml.backend_reg_by_name(b"RPC")
    found: list[int] = []
    seen = set()
    for number in range(ggml.backend_dev_count()):
        device = ggml.backend_dev_get(number)
        if lent and ggml.backend_dev_backend_reg(device) == lent:
            continue
        properties = _Properties()
        ggml.backend_dev_get_props(device, ctypes.byref(properties))
        if properties.device_id and properties.device_id in seen:
            continue
        seen.add(properties.device_id)
        found.append(device)
    return found


def own_gpus() -> list[int]:
    """Handles of this machine's GPUs, discrete ones first."""
    ggml, own = calls(), own_devices()
    return [each for kind in (GPU, INTEGRATED_GPU) for each in own if ggml.backend_dev_type(each) == kind]


def rpc_call(name: str) -> Any:
    """Finds a function of ggml's RPC backend by its name without ``ggml_backend_rpc_``."""
    ggml = calls()
    backend = ggml.backend_reg_by_name(b"RPC")
    address = ggml.backend_reg_get_proc_address(backend, f"ggml_backend_rpc_{name}".encode()) if backend else None
    if not address:
        raise without_rpc()
    return _RPC[name](address)


class Operations:
    """Builds a graph. Tensors have three dimensions in ggml's order, which is numpy's reversed."""

    def __init__(self, context: int) -> None:
        self._context, self._ggml = context, calls()
        # float32 tensors that are set before each run, and their shapes
        self.inputs: list[tuple[Tensor, tuple[int, ...]]] = []
        # tensors that are read after each run, and the arrays for their values
        self.outputs: list[tuple[Tensor, NDArray[Any]]] = []

    def input(self, *shape: int) -> Tensor:
        """Adds a float32 tensor that is set before each run."""
        tensor: Tensor = self._ggml.new_tensor_3d(self._context, F32, *shape)
        self._ggml.set_input(tensor)
        self.inputs.append((tensor, shape))
        return tensor

    def output(self, tensor: Tensor, kind: type[np.float32 | np.int32], *shape: int) -> None:
        """Marks a tensor, of the given type and shape, to be read after each run."""
        if self._ggml.nbytes(tensor) != 4 * prod(shape):
            raise ValueError(f"an output of {self._ggml.nbytes(tensor)} bytes is not {shape}")
        self._ggml.set_output(tensor)
        self.outputs.append((tensor, np.empty(shape[::-1], kind)))

    def multiply(self, weight: Tensor, states: Tensor) -> Tensor:
        """``ggml_mul_mat``: [d, v, m] and [d, n, m] to [v, n, m]."""
        return int(self._ggml.mul_mat(self._context, weight, states))

    def add(self, one: Tensor, other: Tensor) -> Tensor:
        return int(self._ggml.add(self._context, one, other))

    def silu(self, tensor: Tensor) -> Tensor:
        return int(self._ggml.silu(self._context, tensor))

    def soft_max(self, tensor: Tensor) -> Tensor:
        return int(self._ggml.soft_max(self._context, tensor))

    def top_k(self, tensor: Tensor, count: int) -> Tensor:
        """Indices (int32) of the ``count`` largest numbers along the first axis, unordered."""
        return int(self._ggml.top_k(self._context, tensor, count))

    def rows(self, tensor: Tensor, indices: Tensor) -> Tensor:
        """[d, v, m] and indices [k, m] to [d, k, m]: the rows at the indices."""
        return int(self._ggml.get_rows(self._context, tensor, indices))

    def reshape(self, tensor: Tensor, *shape: int) -> Tensor:
        return int(self._ggml.reshape_3d(self._context, tensor, *shape))
