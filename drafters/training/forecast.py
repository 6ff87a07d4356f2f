"""What a training run needs, told before it starts: its time, measured, and its memory, estimated."""

import ctypes
import math
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import torch

from slipstream.drafters.training.from_gguf import shape_of
from slipstream.drafters.training.loop import Say
from slipstream.drafters.training.replies import ManyReplies
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import Header
from slipstream.models.heads.file import Text
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.outside import shown_path
from slipstream.models.sampling.sampler import Sampler

BATCH_TOKENS: Final = 2048  # default rows of all windows of one step
WINDOW: Final = 512  # default rows of one window

_TRAINED_AS_READ: Final = 3.0
"""Assumed cost of training heads on a token, in times of reading it: 1 for the forward pass, 2 for the backward one."""
_SIDE_BY_SIDE: Final = 16


@dataclass(frozen=True)
class Pace:
    """Tokens a second of a model on this machine."""

    reading: float  # of a prompt
    answering: float  # of several replies at a time

    @staticmethod
    def measured(model: LlamaModel, options: ContextOptions) -> "Pace":
        """Reads a hundred tokens and writes a few; under a second for small models, a few passes for large ones."""
        tokens = list(islice(cycle(range(1, min(100, model.n_vocab))), 128))
        with closing(LlamaTarget(model, options)) as target:
            target.prefill(tokens[:64])  # the first pass also touches the weights for the first time
            began = time.perf_counter()
            target.prefill(tokens)
            reading = 64 / (time.perf_counter() - began)
        with closing(ManyReplies(model, _SIDE_BY_SIDE, 64, options)) as replies:
            prompts = ((tokens[:2], Sampler(temperature=1.0, seed=seed)) for seed in range(_SIDE_BY_SIDE))
            began = time.perf_counter()
            made = sum(len(reply) for _, reply in replies.replies(prompts, 4))
            answering = made / (time.perf_counter() - began)
        return Pace(reading, answering)


def forecast(text: Text, tokens: int, passes: int, pace: Pace, say: Say, made: int = 0) -> None:
    """Prints how long the parts of a run will take.

    Args:
        passes: over the text, of all methods together.
        made: tokens of answers that are there already.
    """
    parts = {"to write answers": max(0, tokens - made) / pace.answering if text == "answers" else 0.0}
    parts["to read them" if text == "answers" else "to read the text"] = tokens / pace.reading
    parts["to train"] = _TRAINED_AS_READ * passes * tokens / pace.reading
    shown = ", ".join(f"{duration(seconds)} {what}" for what, seconds in parts.items() if seconds)
    say(f"this will take about {duration(sum(parts.values()))} ({shown}); it can be stopped and started again")


def larger_targets(header: Header, pace: Pace, tokens: int) -> str:
    """What heads of one method would take here for models of 1 and 4 billion weights, scaled from this one's pace."""
    weights = sum(math.prod(info.shape) for info in header.tensors)
    seconds = tokens * (1 / pace.answering + (1 + 3 * _TRAINED_AS_READ) / pace.reading)
    shown = " and ".join(f"{duration(seconds * size / weights)} for {size / 1e9:.0f}B" for size in (1e9, 4e9))
    return f"one method on {tokens:,} tokens would take about {shown} on this machine"


def duration(seconds: float) -> str:
    """Seconds in words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
    """Bytes that a new program can use without swapping; on macOS, which does not report it, all memory."""
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
    """Bytes available according to the text of /proc/meminfo."""
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
    """Chooses the type of weights for training through a model: float32 if that fits the memory, else bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        needed = memory_needed(header, dtype, batch_tokens, window)
        if needed <= available:
            return dtype
    raise SlipstreamError(
        f"training through {shown_path(header.path)} needs {needed / 1e9:.1f} GB of memory, "
        f"and {available / 1e9:.1f} GB are available.",
        "Close other programs or choose a smaller model; or train medusa or kangaroo, which run it as it is.",
    )
