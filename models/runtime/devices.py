"""What this machine computes with: its processor and GPUs, and how much memory they have left."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from slipstream.models.runtime.machine import memory, processor

Kind = Literal["gpu", "igpu", "cpu", "accel"]

_PATIENCE: Final = 60.0
"""Seconds that a driver has to answer."""
_ILLEGAL: Final = (-4, 0xC000001D)
"""How a process ends that meets an instruction which the processor does not have: SIGILL, and Windows' code of it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that llama.cpp can run on.

    Attributes:
        name: llama.cpp's name of it, such as ``CUDA0`` or ``CPU``.
        kind: "gpu" has memory of its own; "igpu" and "cpu" share the machine's; "accel" helps the processor.
        description: The maker's name of it.
        total_bytes: Memory that it has.
        free_bytes: Memory that is free on it now.
    """

    name: str
    kind: Kind
    description: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Survey:
    """What llama.cpp says about this machine and about itself.

    Attributes:
        devices: What it can run on, the processor last.
        backends: Names of the backends that are built in, such as ``CPU`` or ``CUDA``.
        features: What the build uses of the processor, such as ``AVX2``.
        version: Version of llama.cpp.
        cores: Physical cores that this process may use; 0 if not known.
        amx_left_out: Whether the processor has AMX and this build cannot use it.
        problem: Why there was no answer, and only the processor is listed; empty if all went well.
    """

    devices: tuple[Device, ...]
    backends: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    version: str = ""
    cores: int = 0
    amx_left_out: bool = False
    problem: str = ""


def devices() -> list[Device]:
    """Lists what llama.cpp can run on, the processor last; see ``survey``."""
    return list(survey().devices)


def survey() -> Survey:
    """Asks in a process of its own: a GPU's driver takes memory in every process that asks, and may end it."""
    command = [sys.executable, "-m", "slipstream.models.runtime.devices"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Survey((cpu(),), problem=f"llama.cpp's devices did not answer within {_PATIENCE:.0f} s")
    return read_answer(done.stdout, done.stderr, done.returncode)


def read_answer(answer: bytes, log: bytes = b"", code: int = 0) -> Survey:
    """Reads what a process of this module printed.

    Args:
        answer: Its standard output.
        log: Its standard error: one that died has left its last words there.
        code: How it ended.
    """
    try:
        said = reversed(answer.decode("utf-8", "replace").splitlines())  # a driver may print before and after
        fields: dict[str, Any] = json.loads(next(line for line in said if line.startswith("{")))
    except (ValueError, StopIteration):
        lines = [line.strip() for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
        reason = f": {lines[-1]}" if lines else ""
        if code in _ILLEGAL:
            reason = ": it is built for another kind of processor (illegal instruction)"
        return Survey((cpu(),), problem=f"llama.cpp could not say what devices there are{reason}")
    lists = {"devices": tuple(Device(**device) for device in fields["devices"])}
    lists |= {name: tuple(fields[name]) for name in ("backends", "features")}
    return Survey(**fields | lists)


def survey_here() -> Survey:
    """Asks in this process: for the engine's, which is to use the devices anyway."""
    from llama_cpp import llama_cpp as C

    from slipstream.models.runtime.ggml import calls
    from slipstream.models.runtime.library import amx_is_miscompiled, physical_cores

    C.llama_backend_init()
    ggml = calls()
    backends = [ggml.backend_reg_name(ggml.backend_reg_get(n)).decode() for n in range(ggml.backend_reg_count())]
    system = C.llama_print_system_info().decode("utf-8", "replace")
    found = [_device(ggml, ggml.backend_dev_get(n)) for n in range(ggml.backend_dev_count())]
    features = (name for name in features_of(system) if not (amx_is_miscompiled() and name.startswith("AMX")))
    return Survey(
        devices=(*(device for device in found if device.kind != "cpu"), cpu()),
        backends=tuple(backends),
        features=tuple(features),
        version=C.llama_version().decode(),
        cores=physical_cores(),
        amx_left_out=amx_is_miscompiled(),
    )


def cpu() -> Device:
    """The processor, with the machine's memory: ggml's own figure knows no limits and counts caches as taken."""
    total, free = memory()
    return Device("CPU", "cpu", processor(), total, free)


def features_of(system: str) -> list[str]:
    """Finds what is switched on in the text of ``llama_print_system_info``, such as ``CPU : AVX2 = 1 | FMA = 1``."""
    return [name for name, value in re.findall(r"([A-Z][A-Z0-9_]+) = (\d+)", system) if int(value)]


def _device(ggml: Any, pointer: Any) -> Device:
    total, free = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    name = ggml.backend_dev_name(pointer).decode("utf-8", "replace")
    kinds: tuple[Kind, ...] = ("cpu", "gpu", "igpu", "accel")  # ggml_backend_dev_type
    place = ggml.backend_dev_type(pointer)
    kind: Kind = kinds[place] if place < len(kinds) else "accel"
    if kind == "gpu" and name.startswith(("MTL", "Metal")):
        kind = "igpu"  # Apple silicon: one memory for all
    description = ggml.backend_dev_description(pointer).decode("utf-8", "replace")
    return Device(name, kind, description, total.value, free.value)


if __name__ == "__main__":
    print(json.dumps(asdict(survey_here())))
