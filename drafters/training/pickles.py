"""Reads PyTorch files of others without running code that they may contain."""

import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.outside import quoted, shown_path

_CONVERTED = "Get the same weights as .safetensors."


def load_pickle(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of a state dict, on the CPU, as float32.

    torch's ``weights_only`` refuses every pickle that would call anything but torch's own constructors of tensors.

    Raises:
        SlipstreamError: If torch is missing or too old to be trusted with this.
        ModelFileError: If the file cannot be read, holds more than weights, or is no state dict.
    """
    try:
        import torch
    except ImportError:
        raise SlipstreamError(
            f"{shown_path(path)} is a PyTorch file, and torch is not installed.",
            "Install it: pip install 'slipstream[train]', or get the same weights as .safetensors.",
        ) from None
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise SlipstreamError(  # CVE-2025-32434
            f"torch {torch.__version__} can be made to run programs even when it reads weights alone.",
            "Update it: pip install 'torch>=2.9'.",
        )
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ModelFileError(
            f"{shown_path(path)} holds more than weights, or is damaged: reading it could run code of its author.",
            _CONVERTED,
        ) from None
    except Exception as error:  # a damaged file can cause errors of any type
        reason = quoted(str(error).split("\n", 1)[0] or type(error).__name__, 120)
        raise ModelFileError(f"{shown_path(path)} cannot be read by torch: {reason}.", _CONVERTED) from None
    if not isinstance(stored, dict):
        raise ModelFileError(f"{shown_path(path)} holds no tensors by name.", _CONVERTED)
    found: dict[str, NDArray[np.float32]] = {}
    for name, values in stored.items():
        if not isinstance(name, str) or not isinstance(values, torch.Tensor):
            raise ModelFileError(f"{shown_path(path)} holds {quoted(str(name))}, which is no tensor.", _CONVERTED)
        found[name] = values.detach().float().numpy()
    return found
