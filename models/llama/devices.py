"""This machine's processor and GPUs, and their free memory."""

import ctypes
import json
import platform
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from slipstream.models.child import end_with_parent, last_words, run_child
from slipstream.models.errors import reason_of
from slipstream.models.llama.cgroups import memory_limits, processor_quota
from slipstream.models.llama.install import broken_install

Kind = Literal["gpu", "igpu", "cpu", "accel"]
_PATIENCE: Final = 60.0  # seconds that a driver may take
_NO_LIMIT: Final = 1 << 60


def memory(root: Path = Path("/")) -> tuple[int, int]:
    """Total bytes of memory within this process's limits, and those free without swapping; 0 and 0 if unknown."""
    if sys.platform == "linux":
        return _linux(root)
    import psutil  # it ignores the limits of a process, which ``_linux`` reads

    found = psutil.virtual_memory()
    return found.total, found.available


def _linux(root: Path) -> tuple[int, int]:
    found = {}
    with suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) << 10
    total = found.get("MemTotal", 0)
    available = found.get("MemAvailable", found.get("MemFree", 0))
    for limit, used in memory_limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return total, min(available, _address_space(root))


def _address_space(root: Path) -> int:
    """Bytes that ``ulimit -v`` leaves to this process."""
    with suppress(OSError):
        limits = (root / "proc/self/limits").read_text()
        limit = re.search(r"^Max address space +(\d+)", limits, re.MULTILINE)
        used = re.search(r"^VmSize:\s+(\d+)", (root / "proc/self/status").read_text(), re.MULTILINE)
        if limit:
            return max(0, int(limit[1]) - (int(used[1]) << 10 if used else 0))
    return _NO_LIMIT


def processor(root: Path = Path("/")) -> str:
    if sys.platform == "darwin":
        return _output_of("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.machine()
    with suppress(OSError):
        found = re.search(r"^model name\s*: (.+)$", (root / "proc/cpuinfo").read_text(errors="replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def processor_flags(root: Path = Path("/")) -> str:
    """The processor's features as Linux spells them, such as ``avx2``; empty elsewhere."""
    with suppress(OSError):
        cpu = (root / "proc/cpuinfo").read_text(errors="replace")
        found = re.search(r"^(?:flags|Features)\s*: (.+)$", cpu, re.MULTILINE)
        return found[1] if found else ""
    return ""


def _output_of(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    return ""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that llama.cpp can run on."""

    name: str  # llama.cpp's name of it, such as ``CUDA0`` or ``CPU``
    kind: Kind  # "gpu" has its own memory; "igpu" and "cpu" share the machine's; "accel" speeds up the processor
    description: str
    total_bytes: int
    free_bytes: int
    machine: str = ""  # ``HOST:PORT`` of the machine that lends it; empty for a device of this machine


@dataclass(frozen=True, slots=True)
class Survey:
    """The devices and the build that llama.cpp reports."""

    devices: tuple[Device, ...]
    backends: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    version: str = ""
    cores: int = 0  # physical cores that this process may use; 0 if not known
    quota: float = 0.0  # number of processors whose time its container may use; 0 without a limit
    amx_left_out: bool = False  # whether the processor has AMX and this build cannot use it
    problem: str = ""  # why only the processor is listed; empty if the survey succeeded
    cure: str = ""  # how to repair it, with the command; empty if unknown


def devices() -> list[Device]:
    """Lists llama.cpp's devices, the processor last; see ``survey``."""
    return list(survey().devices)


def survey() -> Survey:
    """Lists the devices in a separate process: a GPU driver takes memory in each process, and may crash it."""
    try:
        done = run_child(["-m", "slipstream.models.llama.devices"], _PATIENCE)
    except subprocess.TimeoutExpired:
        return Survey((cpu(),), problem=f"llama.cpp's devices did not answer within {_PATIENCE:.0f} s")
    except OSError as error:
        return Survey((cpu(),), problem=f"the process that lists devices cannot be started: {reason_of(error)}")
    return read_answer(done.stdout, done.stderr, done.returncode)


def read_answer(answer: bytes, log: bytes = b"", code: int = 0) -> Survey:
    """Reads the output of a process of this module; its log and its exit code show why it crashed."""
    try:
        lines = reversed(answer.decode("utf-8", "replace").splitlines())  # a driver may print before and after
        fields: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    except (ValueError, StopIteration):
        text = log.decode("utf-8", "replace")
        if broken := broken_install(text, code):
            return Survey((cpu(),), problem=broken.what, cure=broken.cure)
        printed = [line.strip() for line in text.splitlines() if line.strip()]
        reason = f": {last_words(text) or printed[-1]}" if printed else ""
        return Survey((cpu(),), problem=f"llama.cpp could not say what devices there are{reason}")
    lists = {"devices": tuple(Device(**device) for device in fields["devices"])}
    lists |= {name: tuple(fields[name]) for name in ("backends", "features")}
    return Survey(**fields | lists)


def survey_here() -> Survey:
    """Lists this machine's devices in this process, for the engine, which uses them anyway."""
    from llama_cpp import llama_cpp as C

    from slipstream.models.llama.ggml import calls, own_devices
    from slipstream.models.llama.library import amx_is_miscompiled, physical_cores

    C.llama_backend_init()
    ggml = calls()
    backends = [ggml.backend_reg_name(ggml.backend_reg_get(n)).decode() for n in range(ggml.backend_reg_count())]
    system = C.llama_print_system_info().decode("utf-8", "replace")
    found = [_device(ggml, each) for each in own_devices()]
    features = (name for name in features_of(system) if not (amx_is_miscompiled() and name.startswith("AMX")))
    return Survey(
        devices=(*(device for device in found if device.kind != "cpu"), cpu()),
        backends=tuple(backends),
        features=tuple(features),
        version=C.llama_version().decode(),
        cores=physical_cores(),
        quota=processor_quota(),
        amx_left_out=amx_is_miscompiled(),
    )


def cpu() -> Device:
    """The processor with the memory from ``memory``: ggml's figure ignores limits and counts caches as used."""
    total, free = memory()
    return Device("CPU", "cpu", processor(), total, free)


def features_of(system: str) -> list[str]:
    """Finds the enabled features in the text of ``llama_print_system_info``, such as ``CPU : AVX2 = 1 | FMA = 1``."""
    return [name for name, value in re.findall(r"([A-Z][A-Z0-9_]+) = (\d+)", system) if int(value)]


def _device(ggml: Any, pointer: Any) -> Device:
    total, free = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.backend_dev_memory(pointer, ctypes.byref(free), ctypes.byref(total))
    name = ggml.backend_dev_name(pointer).decode("utf-8", "replace")
    kinds: tuple[Kind, ...] = ("cpu", "gpu", "igpu", "accel")  # ggml_backend_dev_type
    place = ggml.backend_dev_type(pointer)
    kind: Kind = kinds[place] if place < len(kinds) else "accel"
    if kind == "gpu" and name.startswith(("MTL", "Metal")):
        kind = "igpu"  # Apple silicon shares one memory
    description = ggml.backend_dev_description(pointer).decode("utf-8", "replace")
    return Device(name, kind, description, total.value, free.value)


if __name__ == "__main__":
    end_with_parent()
    print(json.dumps(asdict(survey_here())))
