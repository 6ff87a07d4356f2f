"""Decides what follows a lost GPU, another machine, memory or drafter: how the process ended, and its next start.

``worker`` ends the process if a GPU fails and ``watchdog`` if one hangs; ``end_of`` here finds the cause and words the
error that the screen shows; ``Recovery.ended`` decides, ``Recovery.apply`` changes what ``client`` starts again with.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from slipstream.app.engine.process.watchdog import HANGS
from slipstream.app.protocol.events import Loaded
from slipstream.app.protocol.requests import Load
from slipstream.drafters.crash_note import NO_NOTE, CrashNote
from slipstream.models.child import last_words
from slipstream.models.errors import SlipstreamError
from slipstream.models.llama.install import broken_install
from slipstream.models.outside import shown_path

Cause = Literal["memory", "gpu", "machine", "drafter", "other"]
MOST: Final = 3  # crashes in a row, without a complete reply between them, after which one start is refused
_MEMORY: Final = (
    "out of memory", "outofmemory", "insufficient memory", "failed to allocate", "bad_alloc", "memoryerror",
    "unable to allocate",
)  # fmt: skip
_GPU: Final = (
    "cuda error", "rocm error", "hip error", "devicelost", "device_lost", "device lost", "unspecified launch failure",
    "ggml_cuda", "ggml_vulkan", "ggml_metal", "command buffer", "ggml-cuda", "ggml-vulkan", "ggml-metal",
    "the gpu failed",
)  # fmt: skip
_MACHINE: Final = ("ggml-rpc", "rpc server")
_SIGNALS: Final = {
    "SIGKILL": "it was killed (SIGKILL), probably because memory ran out",
    "SIGABRT": "llama.cpp or a library gave up (SIGABRT)",
    "SIGSEGV": "a fault in llama.cpp or a library (SIGSEGV)",
    "SIGBUS": "the model file changed or its disk went away (SIGBUS)",
    "SIGILL": "its llama.cpp was built for another processor (SIGILL)",
    "SIGFPE": "a fault in llama.cpp or a library (SIGFPE)",
    "SIGTERM": "it was told to end (SIGTERM)",
}
_FAULTS: Final = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "")
"""Signals after which the log is searched for the reason; "" is an end without a signal."""
_HINTS: Final = {"SIGBUS": "What was written is kept. Check the disk, then run `slipstream models verify`."}
_HARMLESS: Final = re.compile(
    r"ggml_(cuda_init: found |vulkan: (No devices found|Found |\d+ = )|metal\w*: (GPU|allocating|found|picking))"
)
"""Lines that every process of such a build logs while it starts."""
_TRACES: Final = ("  File ", "Thread 0x", "Current thread", "Extension modules", "Fatal Python error")
_LAST: Final = 12  # number of last log lines that are searched; earlier ones may report harmless errors
_KEPT: Final = "What was written is kept; the next message starts it again"


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended."""

    reason: str  # for the screen
    hint: str = f"{_KEPT}."  # what the user can do
    cause: Cause = "other"  # decides the changes of the next start
    drafter: str = ""  # the drafter whose call was running, if that is the cause


def end_of(code: int | None, log: str, given_up: str = "", note: CrashNote = NO_NOTE) -> End:
    """Classifies the end of a process by its exit code, log and note; ``given_up`` is why the watchdog killed it."""
    told = (line for line in log.splitlines() if line.strip() and not line.startswith(_TRACES))
    lines = [line for line in told if not _HARMLESS.match(line)][-_LAST:]
    if given_up:
        hangs = given_up.startswith(HANGS)
        waited: Cause | None = "machine" if note.machines else "gpu" if note.gpu else None
        cause: Cause = waited if hangs and waited else "drafter" if note.drafter else "other"
        reason = f"{given_up}, so it was ended"
    elif code is None:
        return End("the system does not let it end")
    elif code > 0 and (broken := broken_install("\n".join(lines), code)):
        return End(broken.what, broken.cure)
    else:
        name, last = _signal(code) if code < 0 else "", last_words("\n".join(lines))
        cause = _cause(name, lines, note)
        words = f" ({last})" if last and name != "SIGKILL" else ""
        reason = f"{_SIGNALS.get(name) or (f'signal {name}' if name else f'exit code {code}')}{words}"
        if cause == "memory" and name != "SIGKILL":
            reason = f"memory ran out, {reason}"
    if cause == "drafter":
        reason = f"drafter {note.drafter} ended it, {reason}"
        return End(reason, "What was written is kept; replies go on without this drafter.", cause, note.drafter)
    if cause == "machine":
        lost = reason if given_up else "its connection was closed"
        return End(f"another machine was lost, {lost}", f"{_KEPT} with the machines that are left.", cause)
    if cause == "gpu":
        return End(f"the GPU failed or was lost, {reason}", f"{_KEPT} on the processor.", cause)
    if cause == "memory":
        return End(reason, f"{_KEPT} with half the context.", cause)
    if not given_up and (illegal := broken_install("", code)):
        return End(reason, f"What was written is kept. {illegal.cure}", cause)
    return End(reason, f"{_KEPT}." if given_up else _HINTS.get(name, f"{_KEPT}."), cause)


def _cause(name: str, lines: Sequence[str], note: CrashNote) -> Cause:
    """The cause of the end; "memory" comes before "gpu", since a GPU's error may report that memory ran out."""
    if name == "SIGTERM":
        return "other"
    log = "\n".join(lines).lower() if name in _FAULTS else ""
    if any(word in log for word in _MACHINE):
        return "machine"
    memory = name == "SIGKILL" or any(word in log for word in _MEMORY)
    if not memory and any(word in log for word in _GPU):
        return "machine" if note.machines else "gpu"
    return "drafter" if note.drafter else "memory" if memory else "other"


def _signal(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return str(-code)


class Recovery:
    """Records how a model's process ended, and changes its next start; another model starts without changes.

    Halves the context each time memory ran out. Disables a GPU that failed, and a drafter that crashed the process.
    """

    can_retry: bool  # whether the request can be repeated at once: a drafter caused the last end, and is now disabled

    def __init__(self) -> None:
        self._model: tuple[str, str | None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._halved, self._processor, self._in_a_row = 0, False, 0
        self._unreported: set[Cause] = set()
        self._failed: dict[str, str] = {}
        self.can_retry = False

    def apply(self, load: Load, log: Path) -> Load:
        """Changes a load to avoid earlier ends; raises ``SlipstreamError`` after too many, then allows one more try."""
        model = (load.model, load.draft_model)
        if model != self._model:
            self._model = model
            self._begin()
        if self._in_a_row >= MOST:
            self._in_a_row = MOST - 1
            raise SlipstreamError(
                f"the engine ended {MOST} times in a row with this model, so it was not started again.",
                f"Choose a smaller model or context, or see {shown_path(log)}. The next message tries once more.",
            )
        load = replace(load, halved=load.halved + self._halved, failed=load.failed | self._failed)
        return replace(load, gpu_layers=0, draft_gpu_layers=0) if self._processor else load

    def ended(self, end: End) -> None:
        self.can_retry = end.cause == "drafter" and end.drafter not in self._failed
        if self.can_retry:
            self._failed[end.drafter] = f"the engine ended in it: {end.reason.split(' ended it, ', 1)[-1]}"
            return
        self._in_a_row += 1
        self._halved += end.cause == "memory"
        self._processor |= end.cause == "gpu"
        self._unreported |= {end.cause} & {"memory", "gpu", "machine"}

    def replied(self) -> None:
        self._in_a_row = 0

    def with_remark(self, loaded: Loaded) -> Loaded:
        words: dict[Cause, str] = {
            "memory": f"with a context of {loaded.n_ctx:,} tokens, since memory probably ran out",
            "gpu": "on the processor, since the GPU failed",
            "machine": f"with {', '.join(loaded.machines)}" if loaded.machines else "on this machine alone",
        }
        changes = [change for cause, change in words.items() if cause in self._unreported]
        self._unreported = set()
        if not changes:
            return loaded
        again = f"the engine was started again {' and '.join(changes)}."
        return replace(loaded, remark=f"{again} {loaded.remark}".strip())
