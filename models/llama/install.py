"""Finds out why an installed llama.cpp cannot be loaded, and the commands that install it for the running Python.

llama.cpp is first loaded in a separate process, because a library built for another processor crashes the process that
loads it. The error that this process prints, or the signal that ends it, shows the reason.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from slipstream.models.child import run_child
from slipstream.models.errors import SlipstreamError

RPC: Final = "-DGGML_RPC=on"
"""CMake flag for llama.cpp's RPC backend, which lends devices to other machines and uses theirs."""
PAGES: Final = "https://abetlen.github.io/llama-cpp-python/whl"
"""Prebuilt wheels of llama-cpp-python: one page for each backend."""
Kind = Literal["missing", "damaged", "architecture", "library", "system", "processor"]
ILLEGAL: Final = (-4, 132, 0xC000001D)
"""Exit codes after an illegal instruction, as Python, a shell and Windows report it."""
_PATIENCE: Final = 60.0
_PLACE: Final = "LLAMA_CPP_LIB_PATH"  # a variable of llama-cpp-python
_ERROR: Final = re.compile(r"^(?:\w+\.)*(\w+Error): (.*)$", re.MULTILINE)
_NEEDS: Final = re.compile(r"([\w.+-]+\.(?:so[\w.]*|dylib|dll)): cannot open shared object|Library not loaded: (\S+)")
_OTHER: Final = re.compile(r"wrong ELF class|incompatible architecture|not a valid Win32 application|WinError 193")
_OLD: Final = re.compile(r"version [`'](\w+_[\d.]+)' not found|Symbol not found: .*was built for (macOS [\d.]+)")
_OWN: Final = ("libllama", "libggml", "libmtmd")  # libraries that come with llama-cpp-python
_SYSTEMS: Final = {"libcud": "CUDA's runtime", "libcublas": "CUDA's runtime", "libvulkan": "the Vulkan loader",
                   "libgomp": "GCC's OpenMP runtime", "libomp": "the OpenMP runtime"}  # fmt: skip
"""Prefix of a library's name to the software that contains it."""


def from_source(flags: str, version: str = "") -> str:
    """The command that builds llama-cpp-python, ``needed_version`` by default, without pip's cache of builds."""
    setting = f'$env:CMAKE_ARGS="{flags}"; ' if sys.platform == "win32" else f'CMAKE_ARGS="{flags}" '
    version = version or needed_version()
    return setting + install(version, "--no-binary llama-cpp-python --no-cache-dir")


def install(version: str, options: str) -> str:
    """The command that installs llama-cpp-python: with this Python's pip, or with uv if this Python has no pip."""
    import importlib.util

    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install --force-reinstall --no-deps {options} llama-cpp-python=={version}"
    options = options.replace("--no-cache-dir", "--no-cache")
    return f"uv pip install --python {python} --reinstall --no-deps {options} llama-cpp-python=={version}"


def prebuilt(version: str, page: str = "") -> str:
    """The command that installs a prebuilt wheel, from a page below ``PAGES`` or that for Metal or the CPU."""
    default = "metal" if (platform.system(), platform.machine()) == ("Darwin", "arm64") else "cpu"
    return install(version, f"--only-binary llama-cpp-python --extra-index-url {PAGES}/{page or default}")


def needed_version() -> str:
    """The version of llama-cpp-python that the package requires; empty if the package is not installed."""
    import importlib.metadata  # slow to import, and the interface seldom needs it

    try:
        wanted = " ".join(importlib.metadata.requires("slipstream") or [])
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.search(r"llama-cpp-python==([\w.]+)", wanted)
    return found[1] if found else ""


def without_rpc() -> SlipstreamError:
    """The error for borrowing or lending devices when llama.cpp is built without RPC."""
    return SlipstreamError(
        "the installed llama.cpp cannot use or lend the devices of other machines: it is built without RPC.",
        f"Build it with RPC, which takes some minutes: {from_source(RPC)}",
    )


@dataclass(frozen=True, slots=True)
class BrokenInstall:
    """What is wrong with an installed llama.cpp."""

    kind: Kind
    what: str  # the problem in one sentence, without a full stop

    @property
    def cure(self) -> str:
        """How to repair it, with the command."""
        if os.environ.get(_PLACE):
            return f"{_PLACE} names the folder to load it from: correct it, or unset it."
        version = needed_version()
        if self.kind in ("processor", "system"):
            return f"Build it on this machine, which takes some minutes: {from_source('-DGGML_NATIVE=on', version)}"
        other = "Install that, or a build that does without: " if self.kind == "library" else "Install it: "
        return f"{other}{prebuilt(version)}"

    @property
    def error(self) -> SlipstreamError:
        return SlipstreamError(f"{self.what}.", self.cure)


def broken_install(log: str, code: int | None = 1) -> BrokenInstall | None:
    """Finds out why a process failed to load llama.cpp; None if it failed for another reason."""
    if code in ILLEGAL:
        return BrokenInstall("processor", "llama.cpp is built for another kind of processor (illegal instruction)")
    errors = _ERROR.findall(log)
    kind, said = errors[-1] if errors else ("", "")
    if kind == "ModuleNotFoundError" and "'llama_cpp" in said:
        return BrokenInstall("missing", "llama-cpp-python is not installed for this Python")
    if "Shared library with base name" in said:
        return BrokenInstall("damaged", "llama.cpp's library is missing from llama-cpp-python")
    if "Failed to load shared library" not in said and "Could not find module" not in said:
        return None
    if needed := _NEEDS.search(said):
        name = (needed[1] or needed[2]).rpartition("/")[2]
        of = next((f" ({owner})" for start, owner in _SYSTEMS.items() if name.startswith(start)), "")
        if "llama_cpp" not in (needed[2] or "") and not name.startswith(_OWN):
            return BrokenInstall("library", f"llama.cpp needs {name}{of}, which this machine does not have")
    if _OTHER.search(said) or _of_another_machine(said):
        machine = f"{platform.system()} {platform.machine()}"
        return BrokenInstall("architecture", f"llama.cpp is built for another kind of machine than this {machine}")
    if old := _OLD.search(said):
        return BrokenInstall("system", f"llama.cpp is built for a newer system than this one ({old[1] or old[2]})")
    if "Could not find module" in said:
        return BrokenInstall("library", "llama.cpp needs a library that this machine does not have")
    return BrokenInstall("damaged", "llama.cpp cannot be loaded: " + (said.partition("': ")[2] or said))


def check_install(environment: Mapping[str, str] | None = None) -> None:
    """Checks that a separate process can load llama.cpp."""
    code = "from slipstream.models.child import end_with_parent; end_with_parent(); import llama_cpp"
    try:
        done = run_child(["-c", code], _PATIENCE, environment)
    except subprocess.TimeoutExpired:
        return  # a driver hangs; loading the model will report it
    found = broken_install(done.stderr.decode("utf-8", "replace"), done.returncode) if done.returncode else None
    if done.returncode < 0 and not found:
        found = BrokenInstall("damaged", f"llama.cpp ends the process that loads it (signal {-done.returncode})")
    if found:
        raise found.error


def _of_another_machine(said: str) -> bool:
    """Whether a library's ELF header names another architecture: Linux's error does not say so."""
    path = re.search(r"Failed to load shared library '([^']+)'", said)
    if not path or "cannot open shared object file" not in said:
        return False
    try:
        with open(path[1], "rb") as file, open(sys.executable, "rb") as python:
            return file.read(20)[18:] != python.read(20)[18:]
    except OSError:
        return False
