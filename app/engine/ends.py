"""Why an engine's process ended, in words, and what may cure it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Cause = Literal["memory", "gpu", "other"]

_TELLING: Final = ("GGML_ASSERT", "GGML_ABORT", "terminate called", "what():", "CUDA error", "Error:")
_MEMORY: Final = (
    "out of memory", "outofmemory", "insufficient memory", "failed to allocate", "bad_alloc", "memoryerror",
    "unable to allocate",
)  # fmt: skip
_GPU: Final = (
    "cuda error", "rocm error", "hip error", "devicelost", "device_lost", "device lost", "unspecified launch failure",
    "ggml_cuda", "ggml_vulkan", "ggml_metal", "command buffer", "ggml-cuda", "ggml-vulkan", "ggml-metal",
)  # fmt: skip
_SIGNALS: Final = {
    "SIGKILL": "it was killed (SIGKILL), probably because memory ran out",
    "SIGABRT": "llama.cpp or a library gave up (SIGABRT)",
    "SIGSEGV": "a fault in llama.cpp or a library (SIGSEGV)",
    "SIGBUS": "the model file changed or its disk went away (SIGBUS)",
    "SIGILL": "its llama.cpp was built for another processor (SIGILL)",
    "SIGFPE": "a fault in llama.cpp or a library (SIGFPE)",
    "SIGTERM": "it was told to end (SIGTERM)",
}
_HINTS: Final = {
    "SIGBUS": "What was written is kept. Check the disk, then run `slipstream models verify`.",
    "SIGILL": "Install llama-cpp-python again, built on this machine.",
}
_TRACES: Final = ("  File ", "Thread 0x", "Current thread", "Extension modules", "Fatal Python error")
_LAST: Final = 12
"""Lines of the log that tell of the end; earlier ones may tell of something that was got over."""
_KEPT: Final = "What was written is kept; the next message starts it again"


@dataclass(frozen=True, slots=True)
class End:
    """The end of a process.

    Attributes:
        reason: Why, for people.
        hint: What to do about it.
        cause: What may be cured when it is started again.
    """

    reason: str
    hint: str = f"{_KEPT}."
    cause: Cause = "other"


def end_of(code: int | None, log: str, given_up: str = "") -> End:
    """Words an end.

    Args:
        code: Exit code, below 0 for a signal; None for a process that cannot even be killed.
        log: The end of its log.
        given_up: Why it was killed by its own supervisor, or empty.
    """
    if given_up:
        return End(f"{given_up}, so it was ended")
    if code is None:
        return End("the system does not let it end")
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(_TRACES)][-_LAST:]
    told = _last_words(lines)
    name = _signal(code) if code < 0 else ""
    reason = _SIGNALS.get(name) or (f"signal {name}" if name else f"exit code {code}")
    cause = _cause(name, lines)
    words = f" ({told})" if told and name != "SIGKILL" else ""
    if cause == "memory" and name != "SIGKILL":
        return End(f"memory ran out, {reason}{words}", f"{_KEPT} with half the context.", cause)
    if cause == "memory":
        return End(reason, f"{_KEPT} with half the context.", cause)
    if cause == "gpu":
        return End(f"the GPU failed or was lost, {reason}{words}", f"{_KEPT} on the processor.", cause)
    return End(f"{reason}{words}", _HINTS.get(name, f"{_KEPT}."), cause)


def _cause(name: str, lines: Sequence[str]) -> Cause:
    """Only who gave up has said why. Memory first: a GPU says so, too, when its memory is full."""
    if name == "SIGKILL":
        return "memory"
    said = "\n".join(lines).lower() if name in ("SIGABRT", "") else ""
    if any(word in said for word in _MEMORY):
        return "memory"
    return "gpu" if any(word in said for word in _GPU) else "other"


def _last_words(lines: Sequence[str]) -> str:
    telling = [line for line in lines if any(mark in line for mark in _TELLING)]
    return telling[-1].strip()[:200] if telling else ""


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return str(-code)
