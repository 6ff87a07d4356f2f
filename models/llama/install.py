"""The commands that install llama-cpp-python for this very Python."""

from __future__ import annotations

import importlib.metadata
import importlib.util
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
        version: The version; empty for the installed one.
    """
    setting = f'$env:CMAKE_ARGS="{flags}"; ' if sys.platform == "win32" else f'CMAKE_ARGS="{flags}" '
    version = version or importlib.metadata.version("llama-cpp-python")
    return setting + install(version, "--no-binary llama-cpp-python --no-cache-dir")


def install(version: str, options: str) -> str:
    """The command that installs it: with this Python's pip, or with uv where it has none.

    Args:
        version: The version.
        options: Further options of pip.
    """
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip"):
        return f"{python} -m pip install --force-reinstall --no-deps {options} llama-cpp-python=={version}"
    options = options.replace("--no-cache-dir", "--no-cache")
    return f"uv pip install --python {python} --reinstall --no-deps {options} llama-cpp-python=={version}"


def without_rpc() -> SlipstreamError:
    """The error where other machines are named, or devices are to be lent, and llama.cpp cannot do it."""
    return SlipstreamError(
        "the installed llama.cpp cannot use or lend the devices of other machines: it is built without RPC.",
        f"Build it with RPC, which takes some minutes: {from_source(RPC)}",
    )
