"""Whether a model and its training fit the memory of this machine."""

import ctypes
import math
import subprocess
import sys
from pathlib import Path
from typing import Final

import torch

from slipstream.drafters.training.from_gguf import shape_of
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header
from slipstream.models.outside import shown_path

BATCH_TOKENS: Final = 2048  # default rows of all windows of one step
WINDOW: Final = 512  # default rows of one window


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of sysinfoapi.h."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("physical", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 5),
    )


def available_memory() -> int:
    """Bytes that a new program can use without swapping; on macOS, which does not report it, all memory.

    Raises:
        OSError: If the operating system does not answer.
    """
    if sys.platform == "win32":
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            raise ctypes.WinError()
        return int(status.available)
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "hw.memsize"]
        return int(subprocess.run(command, check=True, capture_output=True, timeout=10).stdout)
    return linux_available(Path("/proc/meminfo").read_text(encoding="ascii"))


def linux_available(meminfo: str) -> int:
    """Bytes available according to the text of /proc/meminfo.

    Raises:
        OSError: If the text does not contain it.
    """
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo does not tell the available memory")


def memory_needed(
    header: Header, dtype: torch.dtype = torch.float32, batch_tokens: int = BATCH_TOKENS, window: int = WINDOW
) -> int:
    """Bytes to load a model as ``load_gguf`` does and to send gradients through it.

    The weights are frozen, and a step runs under ``autocast`` to bfloat16. The result counts the weights, and the
    larger of two parts that never exist together: the float32 values of the largest tensor while the file is read, and
    the tensors that one step keeps for its backward pass. These are the bfloat16 copies of float32 weights; for each
    row and layer, the inputs of both norms (and of the norms of queries and keys) in float32, and in bfloat16 the
    queries, keys and values of all query heads, the output of attention, three tensors of the feed-forward network and
    the mask; and for each row the logits, their softmax and its gradient in float32. It does not count PyTorch itself
    (some 300 MB) and what the caller trains.

    Args:
        dtype: of the weights, float32 or bfloat16.
        window: rows of one window.

    Raises:
        SlipstreamError: If the decoder does not compute this kind of model.
    """
    shape = shape_of(header)
    elements = [math.prod(info.shape) for info in header.tensors]
    heads, kv_heads = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    in_float32 = 2 * shape.width + (heads + kv_heads if shape.qk_norm else 0)
    in_bfloat16 = 4 * heads + 3 * shape.ffn + window
    per_row = shape.layers * (4 * in_float32 + 2 * in_bfloat16) + 12 * shape.vocabulary
    copies = 0 if dtype == torch.bfloat16 else 2 * sum(elements)
    return dtype.itemsize * sum(elements) + max(4 * max(elements), copies + batch_tokens * per_row)


def check_memory(header: Header, available: int, batch_tokens: int = BATCH_TOKENS, window: int = WINDOW) -> torch.dtype:
    """Chooses the type of weights for training through a model: float32 if that fits the memory, else bfloat16.

    Args:
        available: bytes of memory that training may take.
        window: rows of one window.

    Raises:
        SlipstreamError: If neither type fits, or the decoder does not compute this kind of model.
    """
    for dtype in (torch.float32, torch.bfloat16):
        needed = memory_needed(header, dtype, batch_tokens, window)
        if needed <= available:
            return dtype
    raise SlipstreamError(
        f"training through {shown_path(header.path)} needs {needed / 1e9:.1f} GB of memory, "
        f"and {available / 1e9:.1f} GB are available.",
        "Close other programs or choose a smaller model; or train medusa or kangaroo, which run it as it is.",
    )
