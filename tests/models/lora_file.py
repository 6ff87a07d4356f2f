"""Random LoRA adapters for tests, as llama.cpp's converter writes them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream.models.gguf.parse import F32, STRING
from slipstream.models.gguf.reader import Header
from slipstream.models.gguf.tensors import NewTensor, write_gguf

USUAL: Final = ("attn_q", "attn_v", "ffn_down")
"""Weights that are changed in every layer."""


def write_lora(
    path: Path,
    model: Header,
    *,
    seed: int = 1,
    rank: int = 4,
    gain: float = 0.5,
    weights: Sequence[str] = USUAL,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    architecture: str = "",
    broken: float | None = None,
    **metadata: tuple[int, Any],
) -> Path:
    """Writes an adapter that fits a model; ``gain`` 0.5 changes most replies of a small one. Weights of no layer are
    whole names, ``broken`` stands in place of a number, "__" in metadata for a full stop."""
    rng, tensors = np.random.default_rng(seed), []
    for tensor in model.tensors:
        if tensor.name not in weights and not any(f".{name}.weight" in tensor.name for name in weights):
            continue
        columns, rows = tensor.shape[:2]
        a = rng.normal(0, gain / columns**0.5, (rank, columns)).astype(np.float32)
        b = rng.normal(0, 1 / rank**0.5, (rows, rank)).astype(np.float32)
        if tensor.name == "token_embd.weight":  # its A is flipped: a row for each token
            a = rng.normal(0, gain, (rows, rank)).astype(np.float32)
            b = rng.normal(0, 1 / rank**0.5, (columns, rank)).astype(np.float32)
        if broken is not None:
            a[0, 0], broken = broken, None
        for ending, values in (("a", a), ("b", b)):
            tensors.append(NewTensor(f"{tensor.name}.lora_{ending}", values.shape, kind, _giving(values)))
    own = {"general.type": (STRING, "adapter"), "adapter.type": (STRING, "lora"), "adapter.lora.alpha": (F32, 8.0)} | {
        name.replace("__", "."): value for name, value in metadata.items()
    }
    write_gguf(path, architecture or model.architecture, own, tensors)
    return path


def _giving(values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
    return lambda: values
