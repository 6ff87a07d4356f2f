"""Overrides the buffer types of single weights, to keep experts in main memory, and to repack weights without AMX.

One option of llama.cpp turns on both AMX and the repacking of weights (``ggml/src/ggml-cpu/repack.cpp``). If AMX code
would crash, the option stays off, and this module lists the weights to repack by name.
"""

import ctypes
import re
from collections import defaultdict
from functools import cache
from typing import Any, Final

from slipstream.models.gguf.architectures import EXPERTS
from slipstream.models.gguf.reader import Header
from slipstream.models.llama import ggml
from slipstream.models.llama.library import amx_is_miscompiled, model_params
from slipstream.models.llama.placement import Placement

_WEIGHT: Final = re.compile(r"(?:blk\.(\d+)\.((?:attn_(?:q|k|v|qkv|output)|ffn_(?:gate|up|down)))|output)\.weight")
"""Weights that are used only in matrix products."""
_BUFFER: Final = 8  # bytes from the start of struct ggml_tensor to the address of its buffer


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def weight_params(header: Header, repack: bool = True, placement: Placement = Placement()) -> Any:  # noqa: B008
    """llama.cpp's model parameters for this machine and build; with ``repack``, which takes memory, in fast layouts."""
    params = model_params()
    params.use_extra_bufts = params.use_extra_bufts and repack
    places = list[tuple[str, int | None]]()
    if placement.cpu_experts:
        numbers = "|".join(map(str, range(placement.cpu_experts)))
        # means any CPU buffer type: llama.cpp also repacks these weights if it repacks others
        places.append((rf"^blk\.({numbers}){EXPERTS}", ggml.calls().backend_cpu_buffer_type()))
    if repack and amx_is_miscompiled() and not ggml.own_gpus():
        places += [(pattern, buffer_type()) for pattern in repacked(header, placement)]
    if places:  # the first match applies
        named = (_Override * (len(places) + 1))(*(_Override(pattern.encode(), where) for pattern, where in places))
        params.tensor_buft_overrides = ctypes.addressof(named)
        params.named = named  # keeps it alive with the parameters
    return params


def repacked(header: Header, placement: Placement) -> list[str]:
    """Name patterns of the weights to repack: those in CPU layers for which ``gains`` is true."""
    here = placement.before_gpus(1 + (header.n_layer or 0))
    layers: dict[str, list[str]] = defaultdict(list)
    patterns = []
    for tensor in header.tensors:
        found = _WEIGHT.fullmatch(tensor.name)
        number = int(found[1] or header.n_layer or 0) if found else here
        if not found or number >= here or not gains(tensor.type, tensor.shape):
            continue
        if found[1]:
            layers[found[2]].append(found[1])
        else:
            patterns.append(r"^output\.weight$")
    patterns += [rf"^blk\.({'|'.join(numbers)})\.{part}\.weight$" for part, numbers in layers.items()]
    return patterns


@cache
def gains(kind: int, shape: tuple[int, ...]) -> bool:
    """Whether ggml can multiply repacked weights; like ``weight_buft_supported`` of ``src/llama-model-loader.cpp``."""
    where = buffer_type()
    if where is None or len(shape) != 2:
        return False
    calls = ggml.calls()
    context = calls.init(ggml.InitParams(8 * calls.tensor_overhead(), None, True))
    buffer = calls.backend_buft_alloc_buffer(where, 0)
    try:
        weight = calls.new_tensor_3d(context, kind, *shape, 1)
        ctypes.c_void_p.from_address(weight + _BUFFER).value = buffer
        product = calls.mul_mat(context, weight, calls.new_tensor_3d(context, ggml.F32, shape[0], 1, 1))
        return bool(calls.backend_dev_supports_op(calls.backend_dev_by_type(ggml.CPU), product))
    finally:
        calls.backend_buffer_free(buffer)
        calls.free(context)


@cache
def buffer_type() -> int | None:
    """The buffer type that repacks its weights; None if the build has none."""
    calls = ggml.calls()
    device = calls.backend_dev_by_type(ggml.CPU)
    backend = calls.backend_dev_backend_reg(device)
    address = calls.backend_reg_get_proc_address(backend, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return None
    found = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    at = 0
    while found and (where := found[at]):
        if calls.backend_buft_name(where) == b"CPU_REPACK":
            return int(where)
        at += 1
    return None
