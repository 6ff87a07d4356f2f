"""The commands that install llama-cpp-python for this very Python."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Final

from slipstream.models.errors import SlipstreamError

RPC: Final = "-DGGML_RPC=on"
"""Tells CMake to build what lends devices to other machines and borrows theirs."""


def from_source(flags: str, version: str = "") -> str:
    """The command that builds it on this machine, whatever pip has kept of earlier builds.

    Args:
        flags: What CMake is told, such as ``-DGGML_RPC=on``.
        version: The version; empty for the one that is needed.
    """
    setting = f'$env:CMAKE_ARGS="{flags}"; ' if sys.platform == "win32" else f'CMAKE_ARGS="{flags}" '
    version = version or needed_version()
    return setting + install(version, "--no-binary llama-cpp-python --no-cache-dir")


def install(version: str, options: str) -> str:
    """The command that installs it: with this Python's pip, or with uv where it has none.

    Args:
        version: The version.
        options: Further options of pip.
    """
    import importlib.util

    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install --force-reinstall --no-deps {options} llama-cpp-python=={version}"
    options = options.replace("--no-cache-dir", "--no-cache")
    return f"uv pip install --python {python} --reinstall --no-deps {options} llama-cpp-python=={version}"


PAGES: Final = "https://abetlen.github.io/llama-cpp-python/whl"
"""Where its wheels lie, a page a backend."""


def prebuilt(version: str, page: str = "") -> str:
    """The command that installs a wheel, and never compiles.

    Args:
        version: The version.
        page: The backend's name on ``PAGES``; empty for Metal on Apple silicon, else the processor.
    """
    import platform

    usual = "metal" if (platform.system(), platform.machine()) == ("Darwin", "arm64") else "cpu"
    return install(version, f"--only-binary llama-cpp-python --extra-index-url {PAGES}/{page or usual}")


def needed_version() -> str:
    """The version of llama-cpp-python that the package requires; empty where it is not installed as one."""
    import importlib.metadata  # takes longer to load than all else that the interface needs of this file

    try:
        wanted = " ".join(importlib.metadata.requires("slipstream") or [])
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = re.search(r"llama-cpp-python==([\w.]+)", wanted)
    return found[1] if found else ""


def without_rpc() -> SlipstreamError:
    """The error where other machines are named, or devices are to be lent, and llama.cpp cannot do it."""
    return SlipstreamError(
        "the installed llama.cpp cannot use or lend the devices of other machines: it is built without RPC.",
        f"Build it with RPC, which takes some minutes: {from_source(RPC)}",
    )
