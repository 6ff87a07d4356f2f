"""GPUs that are there but not used, because no backend for them is built into llama.cpp."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from slipstream.models.runtime.devices import Survey

Maker = Literal["NVIDIA", "AMD", "Intel", "Apple"]

_BACKENDS: Final = MappingProxyType(
    {
        "NVIDIA": ("CUDA", "Vulkan"),
        "AMD": ("ROCm", "HIP", "Vulkan"),
        "Intel": ("SYCL", "Vulkan"),
        "Apple": ("Metal", "MTL"),
    }
)
"""Backends that run on a maker's GPUs, as llama.cpp names them."""
_VENDORS: Final[Mapping[str, Maker]] = MappingProxyType({"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"})
_NAMES: Final = re.compile(r"(nvidia|geforce|quadro)|(amd|radeon)|(intel|\barc\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that the system knows of.

    Attributes:
        name: Its name.
        maker: Who made it, which tells the backend that it needs.
        driver: Newest CUDA that its driver runs, such as ``12.4``; empty where that is not known or means nothing.
    """

    name: str
    maker: Maker
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Where to look for GPUs.

    Attributes:
        system: ``platform.system()``.
        machine: ``platform.machine()``.
        root: Where ``proc`` and ``sys`` are mounted, on Linux.
        ask: Runs a program of the system; gives what it prints, or nothing where it is missing or fails.
    """

    system: str
    machine: str
    root: Path
    ask: Callable[[Sequence[str]], str]

    @staticmethod
    def here() -> Look:
        """Looks at this machine."""
        return Look(platform.system(), platform.machine(), Path("/"), _ask)


def gpus(look: Look) -> list[Gpu]:
    """Finds the GPUs that the system knows of, whether llama.cpp can use them or not."""
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
    """Those of which no backend takes care."""
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
