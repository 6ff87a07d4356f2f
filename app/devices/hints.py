"""Finds unused GPUs and processor features, and the command to use them, from llama-cpp-python's own index pages."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from slipstream.app.platform.paths import HOME_VARIABLE
from slipstream.models.llama.devices import Survey
from slipstream.models.llama.install import from_source, prebuilt
from slipstream.models.outside import shown_path

Maker = Literal["NVIDIA", "AMD", "Intel", "Apple"]
_BACKENDS: Final = {
    "NVIDIA": ("CUDA", "Vulkan"),
    "AMD": ("ROCm", "HIP", "Vulkan"),
    "Intel": ("SYCL", "Vulkan"),
    "Apple": ("Metal", "MTL"),
}
"""Backends that run on a maker's GPUs, as llama.cpp names them."""
_VENDORS: Final[Mapping[str, Maker]] = MappingProxyType({"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"})
_NAMES: Final = re.compile(r"(nvidia|geforce|quadro)|(amd|radeon)|(intel|\barc\b)", re.IGNORECASE)
_CUDA: Final = {
    ("Linux", "x86_64"): ("cu118", "cu121", "cu122", "cu123", "cu124", "cu125", "cu130", "cu132"),
    ("Windows", "AMD64"): ("cu118", "cu124", "cu125", "cu130", "cu132"),
}
"""Wheels for CUDA, by system and machine."""
_USUAL_CUDA: Final = "cu124"
_VULKAN: Final = frozenset(_CUDA)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the system lists."""

    name: str
    maker: Maker
    driver: str = ""  # newest CUDA version that its driver supports, as in 12.4; empty if unknown, or not from NVIDIA


@dataclass(frozen=True, slots=True)
class Look:
    """The system to search for GPUs."""

    system: str
    machine: str
    root: Path  # folder that contains ``proc`` and ``sys``, on Linux
    ask: Callable[[Sequence[str]], str]  # runs a program and returns its output, empty if it is missing or fails

    @staticmethod
    def here() -> Look:
        return Look(platform.system(), platform.machine(), Path("/"), _ask)


def gpus(look: Look) -> list[Gpu]:
    """Lists the system's GPUs, whether llama.cpp can use them or not."""
    if look.system == "Darwin":
        translated = look.ask(["sysctl", "-n", "sysctl.proc_translated"]).strip() == "1"
        return [Gpu("Apple silicon", "Apple")] if look.machine == "arm64" or translated else []
    found = _nvidia(look)
    if look.system == "Windows":
        query = "(Get-CimInstance Win32_VideoController).Name"
        names = look.ask(["powershell", "-NoProfile", "-Command", query]).splitlines()
        return found + [
            gpu for name in names if (gpu := _named(name.strip())) and not (found and gpu.maker == "NVIDIA")
        ]
    for vendor in sorted((look.root / "sys/class/drm").glob("card[0-9]*/device/vendor")):
        with suppress(OSError):
            maker = _VENDORS.get(vendor.read_text().strip())
            if maker and not (found and maker == "NVIDIA"):
                found.append(Gpu(f"{maker} GPU ({vendor.parent.parent.name})", maker))
    return found


def idle(found: Sequence[Gpu], survey: Survey) -> list[Gpu]:
    return [gpu for gpu in found if not any(name in survey.backends for name in _BACKENDS[gpu.maker])]


def _nvidia(look: Look) -> list[Gpu]:
    names = [
        line.strip() for line in look.ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()
    ]
    if names:
        version = re.search(r"CUDA Version:\s*(\d+\.\d+)", look.ask(["nvidia-smi"]))
        return [Gpu(name, "NVIDIA", version[1] if version else "") for name in names if name]
    found = []
    for information in sorted((look.root / "proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            model = re.search(r"^Model:\s*(.+)$", information.read_text(), re.MULTILINE)
            found.append(Gpu(model[1].strip() if model else "NVIDIA GPU", "NVIDIA"))
    return found


def _named(name: str) -> Gpu | None:
    match = _NAMES.search(name)
    makers: tuple[Maker, ...] = ("NVIDIA", "AMD", "Intel")
    return Gpu(name, makers[(match.lastindex or 1) - 1]) if match else None


def _ask(command: Sequence[str]) -> str:
    if not shutil.which(command[0]):
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True).stdout
    return ""


@dataclass(frozen=True, slots=True)
class Hint:
    """The unused device or feature and what its use requires, and the command to run; empty if there is none."""

    what: str
    command: str = ""


def faster(gpus: Sequence[Gpu], survey: Survey, look: Look, version: str, flags: str) -> list[Hint]:
    """Lists unused GPUs and processor features; ``flags`` are spelled as the system does, such as ``avx2``."""
    hints = []
    makers = list(dict.fromkeys(gpu.maker for gpu in idle(gpus, survey)))
    if {gpu.maker for gpu in gpus} != {"Intel"}:  # an integrated GPU next to another GPU gains nothing
        makers = [maker for maker in makers if maker != "Intel"]
    for maker in makers:
        of_maker = [gpu for gpu in gpus if gpu.maker == maker]
        names = ", ".join(dict.fromkeys(gpu.name for gpu in of_maker))
        hints.append(_gpu(names, of_maker[0], look, version))
    driven = {gpu.maker for gpu in gpus} - {gpu.maker for gpu in idle(gpus, survey)}
    if driven and not any(device.kind in ("gpu", "igpu") for device in survey.devices):
        owners = " and ".join(sorted(driven))
        hints.append(Hint(f"llama.cpp is built for {owners} but finds no GPU: its driver does not answer; update it."))
    if any(device.name.startswith("CUDA") for device in survey.devices) and "USE_GRAPHS" not in survey.features:
        hints.append(
            Hint(
                "llama.cpp is built without CUDA graphs: the processor starts every operation of a pass by itself.",
                from_source("-DGGML_CUDA=on -DGGML_CUDA_GRAPHS=on", version),
            )
        )
    words = set(flags.lower().split())
    missing = [name for name in ("AVX2", "FMA", "F16C") if name.lower() in words and name not in survey.features]
    wider = [name for name in ("AVX512",) if "avx512_vnni" in words and name not in survey.features]
    if survey.features and (missing or wider):
        hints.append(
            Hint(
                f"this processor has {' and '.join(missing or wider)}, which llama.cpp was built without: a build on "
                "this machine uses it (some minutes; it needs a C++ compiler).",
                from_source("-DGGML_NATIVE=on", version),
            )
        )
    if survey.amx_left_out:
        hints.append(
            Hint(
                "this processor has AMX, which stays unused: the compiler of this build sets it up wrong. "
                "A build with GCC 12.4, 13.3, 14 or newer uses it.",
                from_source("-DGGML_NATIVE=on", version),
            )
        )
    return hints


def foreign_letters(look: Look, paths: Iterable[Path]) -> str:
    """A note on paths that libraries on Windows may not open by their names; empty elsewhere and without one."""
    path = next((path for path in paths if look.system == "Windows" and not str(path).isascii()), None)
    if path is None:
        return ""
    return (
        f"{shown_path(path)} has letters outside ASCII, by which some libraries on Windows cannot open files: if models"
        f" do not load, set {HOME_VARIABLE} to a folder such as C:\\slipstream."
    )


def reinstall(look: Look, version: str) -> str:
    return prebuilt(version, "metal" if (look.system, look.machine) == ("Darwin", "arm64") else "cpu")


def _gpu(names: str, gpu: Gpu, look: Look, version: str) -> Hint:
    place = (look.system, look.machine)
    if gpu.maker == "Apple":
        if look.machine != "arm64":
            return Hint(f"{names} runs this Python, made for Intel, by Rosetta; install Slipstream with one for ARM.")
        return Hint(f"{names} lies idle: llama.cpp is built without Metal.", prebuilt(version, "metal"))
    if gpu.maker == "NVIDIA":
        what = f"{names} lies idle: llama.cpp is built without CUDA."
        page = _cuda(place, gpu.driver)
        return Hint(what, prebuilt(version, page) if page else from_source("-DGGML_CUDA=on", version))
    what = f"{names} lies idle: llama.cpp is built without Vulkan."
    if gpu.maker == "Intel":
        what = f"{names} lies idle, and may or may not be faster than the processor: llama.cpp is built without Vulkan."
    return Hint(what, prebuilt(version, "vulkan") if place in _VULKAN else from_source("-DGGML_VULKAN=on", version))


def _cuda(place: tuple[str, str], driver: str) -> str:
    """The page of the newest wheel that the driver supports; empty if there is none for this kind of machine."""
    pages = _CUDA.get(place, ())
    number = re.sub(r"\D", "", driver)
    if not number:
        return _USUAL_CUDA if _USUAL_CUDA in pages else ""
    return max((page for page in pages if int(page[2:]) <= int(number)), key=lambda page: int(page[2:]), default="")
