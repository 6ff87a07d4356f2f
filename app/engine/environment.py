"""What of the interface's environment reaches the engine's process: what it needs, and nothing that looks secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES: Final = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "VIRTUAL_ENV",
        "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "NIX_LD", "NIX_LD_LIBRARY_PATH",
        "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR",
        "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PATHEXT", "COMSPEC", "NUMBER_OF_PROCESSORS",
    )
)  # fmt: skip
_BEGINNINGS: Final = (
    "LC_", "PYTHON", "SLIPSTREAM_", "GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "VECLIB_",
    "CUDA_", "NVIDIA_", "HIP_", "HSA_", "ROCM_", "ROCR_", "GPU_", "MTL_", "METAL_", "VK_", "VULKAN_", "ONEAPI_", "ZE_",
    "SYCL_", "PROCESSOR_",
)  # fmt: skip
_SECRET: Final = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH")


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Chooses the variables that the engine's process gets.

    A list of what is allowed, since nobody can list all that is secret; a proxy's address may hold a password.

    Args:
        environment: The interface's own.
    """
    chosen = {name: value for name, value in environment.items() if _allowed(name.upper())}
    chosen["GGML_NO_BACKTRACE"] = "1"  # or an abort starts a debugger, and hangs
    return chosen


def _allowed(name: str) -> bool:
    return name in _NAMES or (name.startswith(_BEGINNINGS) and not any(word in name for word in _SECRET))
