"""What would be faster, with the command that makes it so.

The wheels are those of llama-cpp-python's own index pages, which its README lists.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from slipstream.app.doctor.gpus import Gpu, Look, idle
from slipstream.models.runtime.devices import Survey

_PAGES: Final = "https://abetlen.github.io/llama-cpp-python/whl"
_CUDA: Final = MappingProxyType(
    {
        ("Linux", "x86_64"): ("cu118", "cu121", "cu122", "cu123", "cu124", "cu125", "cu130", "cu132"),
        ("Windows", "AMD64"): ("cu118", "cu124", "cu125", "cu130", "cu132"),
    }
)
"""Wheels for CUDA, by system and machine."""
_USUAL_CUDA: Final = "cu124"
_VULKAN: Final = frozenset(_CUDA)


@dataclass(frozen=True, slots=True)
class Hint:
    """Something that would be faster.

    Attributes:
        what: What lies idle, and what using it needs.
        command: The command to run; empty where there is none.
    """

    what: str
    command: str = ""


def faster(gpus: Sequence[Gpu], survey: Survey, look: Look, version: str, flags: str) -> list[Hint]:
    """Collects what lies idle.

    Args:
        gpus: Those that the system knows of.
        survey: What llama.cpp says.
        look: The kind of machine.
        version: Of llama-cpp-python, as Slipstream needs it.
        flags: The processor's features as the system spells them, such as ``avx2``.
    """
    hints = []
    makers = list(dict.fromkeys(gpu.maker for gpu in idle(gpus, survey)))
    if {gpu.maker for gpu in gpus} != {"Intel"}:  # beside another GPU the processor's own gains nothing
        makers = [maker for maker in makers if maker != "Intel"]
    for maker in makers:
        of_maker = [gpu for gpu in gpus if gpu.maker == maker]
        names = ", ".join(dict.fromkeys(gpu.name for gpu in of_maker))
        hints.append(_gpu(names, of_maker[0], look, version))
    driven = {gpu.maker for gpu in gpus} - {gpu.maker for gpu in idle(gpus, survey)}
    if driven and not any(device.kind in ("gpu", "igpu") for device in survey.devices):
        owners = " and ".join(sorted(driven))
        hints.append(Hint(f"llama.cpp is built for {owners} but finds no GPU: its driver does not answer; update it."))
    words = set(flags.lower().split())
    missing = [name for name in ("AVX2", "FMA", "F16C") if name.lower() in words and name not in survey.features]
    wider = [name for name in ("AVX512",) if "avx512_vnni" in words and name not in survey.features]
    if survey.features and (missing or wider):
        hints.append(
            Hint(
                f"this processor has {' and '.join(missing or wider)}, which llama.cpp was built without: a build on "
                "this machine uses it (some minutes; it needs a C++ compiler).",
                _source("-DGGML_NATIVE=on", version),
            )
        )
    if survey.amx_left_out:
        hints.append(
            Hint(
                "this processor has AMX, which stays unused: the compiler of this build sets it up wrong. "
                "A build with GCC 12.4, 13.3, 14 or newer uses it.",
                _source("-DGGML_NATIVE=on", version),
            )
        )
    return hints


def reinstall(look: Look, version: str, problem: str) -> str:
    """The command that installs llama.cpp anew; it is built here where the wheel is for newer processors."""
    if "illegal instruction" in problem:
        return _source("-DGGML_NATIVE=on", version)
    return _wheel("metal" if (look.system, look.machine) == ("Darwin", "arm64") else "cpu", version)


def _gpu(names: str, gpu: Gpu, look: Look, version: str) -> Hint:
    place = (look.system, look.machine)
    if gpu.maker == "Apple":
        if look.machine != "arm64":
            return Hint(f"{names} runs this Python, made for Intel, translated; install Slipstream with one for ARM.")
        return Hint(f"{names} lies idle: llama.cpp is built without Metal.", _wheel("metal", version))
    if gpu.maker == "NVIDIA":
        what = f"{names} lies idle: llama.cpp is built without CUDA."
        page = _cuda(place, gpu.driver)
        return Hint(what, _wheel(page, version) if page else _source("-DGGML_CUDA=on", version))
    what = f"{names} lies idle: llama.cpp is built without Vulkan."
    if gpu.maker == "Intel":
        what = f"{names} lies idle, and may or may not be faster than the processor: llama.cpp is built without Vulkan."
    return Hint(what, _wheel("vulkan", version) if place in _VULKAN else _source("-DGGML_VULKAN=on", version))


def _cuda(place: tuple[str, str], driver: str) -> str:
    """The page of the newest wheel that a driver runs; empty where there is none for such a machine."""
    pages = _CUDA.get(place, ())
    number = re.sub(r"\D", "", driver)
    if not number:
        return _USUAL_CUDA if _USUAL_CUDA in pages else ""
    return max((page for page in pages if int(page[2:]) <= int(number)), key=lambda page: int(page[2:]), default="")


def _wheel(page: str, version: str) -> str:
    return _install(version, f"--only-binary llama-cpp-python --extra-index-url {_PAGES}/{page}")


def _source(flags: str, version: str) -> str:
    setting = f'$env:CMAKE_ARGS="{flags}"; ' if sys.platform == "win32" else f'CMAKE_ARGS="{flags}" '
    return setting + _install(version, "--no-binary llama-cpp-python --no-cache-dir")


def _install(version: str, options: str) -> str:
    """For this very Python: with its pip, or with uv where it has none."""
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install --force-reinstall --no-deps {options} llama-cpp-python=={version}"
    options = options.replace("--no-cache-dir", "--no-cache")
    return f"uv pip install --python {python} --reinstall --no-deps {options} llama-cpp-python=={version}"
