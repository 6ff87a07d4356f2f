"""The commands that install llama-cpp-python for the running Python."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Final

from slipstream.models.errors import SlipstreamError

RPC: Final = "-DGGML_RPC=on"
"""CMake flag for llama.cpp's RPC backend, which lends devices to other machines and uses theirs."""


def from_source(flags: str, version: str = "") -> str:
    """The command that builds llama-cpp-python on this machine, without pip's cache of earlier builds.

    Args:
        flags: CMake flags, such as ``RPC``.
        version: Empty for ``needed_version``.
    """
    setting = f'$env:CMAKE_ARGS="{flags}"; ' if sys.platform == "win32" else f'CMAKE_ARGS="{flags}" '
    version = version or needed_version()
    return setting + install(version, "--no-binary llama-cpp-python --no-cache-dir")


def install(version: str, options: str) -> str:
    """The command that installs llama-cpp-python: with this Python's pip, or with uv if this Python has no pip.

    Args:
        options: Further options of pip.
    """
    import importlib.util

    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install --force-reinstall --no-deps {options} llama-cpp-python=={version}"
    options = options.replace("--no-cache-dir", "--no-cache")
    return f"uv pip install --python {python} --reinstall --no-deps {options} llama-cpp-python=={version}"


PAGES: Final = "https://abetlen.github.io/llama-cpp-python/whl"
"""Prebuilt wheels of llama-cpp-python: one page for each backend."""


def prebuilt(version: str, page: str = "") -> str:
    """The command that installs a prebuilt wheel of llama-cpp-python without compiling.

    Args:
        page: Name of the backend's page below ``PAGES``; empty for Metal on Apple silicon, the CPU elsewhere.
    """
    import platform

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
