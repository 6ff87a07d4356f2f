"""The llama.cpp library in this process: its log, its build, safe parameters, and the number of physical cores."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from llama_cpp import llama_cpp as C

from slipstream.models.llama.cgroups import processor_quota
from slipstream.models.types import Floats

_GCC: Final = re.compile(rb"GCC: \([^)]*\) (\d+)\.(\d+)")
_TILES_FIXED_IN: Final = {8: 99, 9: 99, 10: 99, 11: 5, 12: 4, 13: 3}
"""GCC's major version to the first minor version that writes whole tile configurations."""
_DEBUG: Final = 1  # GGML_LOG_LEVEL_DEBUG
_FAILED: Final = "error loading model: "  # the cause follows
_GENERAL: Final = re.compile(r"unable to allocate|[Ff]ailed to load (CLIP )?model from")  # the line before says why
_REUSED: Final = b"CUDA Graph id"  # "… reused", of ggml-cuda.cu, which HIP uses too
_CAPTURED: Final = b"CUDA graph warmup complete"
_LOADING: Final = 3  # increase it when models are loaded differently, so that measurements are repeated


@dataclass(slots=True)
class PassCount:
    """Passes of all contexts of this process, and how many of them a CUDA or HIP device replayed.

    Such a device runs a changed graph node by node, captures it in the second equal pass, and replays it from the third
    on. llama.cpp logs that a graph is reused from the second equal pass on, and each capture. It logs no replays of a
    graph that it has built again, as it does when a context runs two kinds of passes in turns.
    """

    total: int = 0
    reused: int = 0
    captured: int = 0

    def add_line(self, text: bytes) -> bool:
        if text.startswith(_REUSED):
            self.reused += 1
        elif _CAPTURED in text:
            self.captured += 1
        else:
            return False
        return True

    @property
    def replayed(self) -> int:
        return min(self.total, max(0, self.reused - self.captured))

    def since(self, before: PassCount) -> PassCount:
        """The passes after ``before``, an earlier copy of this count."""
        return PassCount(self.total - before.total, self.reused - before.reused, self.captured - before.captured)


class Log:
    """Keeps the last lines of llama.cpp's log; ``process_log`` returns the process's only instance."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=50)  # the last lines at warning level or above
        self.passes = PassCount()  # counts the passes of ``run_pass``
        self._captured: list[str] | None = None
        self.callback = C.llama_log_callback(self._receive)  # kept: C holds no reference
        C.llama_log_set(self.callback, None)

    def _receive(self, level: int, text: bytes, _data: Any) -> None:
        if level == _DEBUG and self.passes.add_line(text):
            return  # it comes with every pass
        line = text.decode("utf-8", "replace").rstrip()
        warns = level in (3, 4) and line  # GGML_LOG_LEVEL_WARN, GGML_LOG_LEVEL_ERROR
        if warns:
            self.lines.append(line)
        if self._captured is not None:
            self._captured.append(line + "\n")
        elif warns:
            print(line, file=sys.stderr)

    @contextmanager
    def listening(self) -> Iterator[list[str]]:
        """Yields a list that collects every line, of any level; none of them is printed."""
        before, self._captured = self._captured, []
        try:
            yield self._captured
        finally:
            self._captured = before

    def reason(self) -> str:
        """The cause of the last failure, as llama.cpp logged it; empty if it logged nothing."""
        telling = [line for line in self.lines if not line.endswith(": failed to load model")] or list(self.lines)[-1:]
        at = next((number for number, line in enumerate(telling) if _FAILED in line), len(telling) - 1)
        cause = telling[at].partition(_FAILED)[2] or telling[at] if telling else ""
        return f"{telling[at - 1]}: {cause}" if at > 0 and _GENERAL.search(cause) else cause


@cache
def process_log() -> Log:
    """The log of this process; cached, because C keeps calling it."""
    return Log()


def run_pass(call: Any, context: Any, batch: Any) -> int:
    """Calls ``llama_decode`` or ``llama_encode``, and counts the pass; returns its code."""
    process_log().passes.total += 1
    code: int = call(context, batch)
    return code


def rows_at(pointer: Any, rows: int, width: int) -> Floats:
    """Views C memory as [rows, width] floats, without a copy."""
    if not pointer:
        raise RuntimeError("llama.cpp gave no rows")
    return _view(ctypes.addressof(pointer.contents), rows, width)


@lru_cache(maxsize=64)  # there are few addresses, and a new C array type costs tens of microseconds
def _view(address: int, rows: int, width: int) -> Floats:
    memory = memoryview((ctypes.c_float * (rows * width)).from_address(address)).cast("B")
    return np.frombuffer(memory, np.float32).reshape(rows, width)


def pointer_to(rows: Floats) -> Any:
    """A C pointer to contiguous floats."""
    return rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def model_params() -> Any:
    """llama.cpp's default model parameters, made safe for this machine and build."""
    params = C.llama_model_default_params()
    if amx_is_miscompiled():
        params.use_extra_bufts = False
    return params


@cache
def amx_is_miscompiled() -> bool:
    """Whether llama.cpp's AMX code would crash this process with SIGILL; AMX is then disabled."""
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        library = next(Path(str(C.__file__)).with_name("lib").glob("libggml-cpu.so*"))
        return "amx_int8" in cpu and loses_tiles(cpu, library.read_bytes())
    except (OSError, StopIteration):
        return False


def loses_tiles(cpu: str, library: bytes) -> bool:
    """Whether a machine has AMX and a library was built with a compiler that miscompiles AMX tiles.

    GCC before 11.5, 12.4, 13.3 and 14 loses all but the first bytes of a tile configuration (its bug 114098), and a
    build on a machine with AMX uses tiles. A shared library contains the versions of its compilers.
    """
    if "amx_int8" not in cpu.split():
        return False
    made_by = {match.groups() for match in _GCC.finditer(library)}
    return any(int(minor) < _TILES_FIXED_IN.get(int(major), 0) for major, minor in made_by)


@cache
def built() -> str:
    """Identifies the library's build by its size, its modification time and ``_LOADING``."""
    facts = Path(str(C._lib._name)).stat()
    return f"{facts.st_size:x}-{facts.st_mtime_ns:x}-{_LOADING}"


@cache
def physical_cores(root: Path = Path("/")) -> int:
    """Counts the physical cores that this process may use; more threads than that slow decoding down.

    A container's quota counts as that many cores: with more threads, each waits until the next period.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    seen = set()
    for cpu in allowed:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            seen.add(((folder / "physical_package_id").read_text(), (folder / "core_id").read_text()))
        except OSError:
            seen.add((str(cpu), ""))
    quota = processor_quota(root)
    return max(1, min(len(seen), int(quota + 0.1)) if quota else len(seen))


def threads_of(context: Any) -> int:
    """The current number of threads of a context."""
    count: int = C.llama_n_threads(context)
    return count
