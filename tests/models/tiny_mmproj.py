"""Writers of tiny mmproj files of random weights, one of each kind of projector, and of images."""

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tests.models.kinds import add_all, finish

EMBED: Final = 32  # width of the vision tower
_UNITS: Final = 64
_PATCH: Final = 8
SIDE: Final = 32  # of the fixed kinds' images
_BLOCKS: Final = 2

Weights = dict[str, NDArray[np.float32]]


def write_mmproj(path: Path, kind: str, width: int, seed: int = 3, title: str = "", tuning: str = "") -> Path:
    """Writes a projector for a model of this width; a title, and what it was tuned for, tell which one."""
    rng = np.random.default_rng(seed)

    def matrix(*shape: int, gain: float = 1.0) -> NDArray[np.float32]:
        return np.asarray(rng.normal(0, gain / np.prod(shape[1:]) ** 0.5, shape), np.float32)

    def bias(size: int) -> NDArray[np.float32]:
        return np.asarray(rng.normal(0, 0.1, size), np.float32)

    weights: Weights = {"v.patch_embd.weight": matrix(EMBED, 3, _PATCH, _PATCH, gain=4.0)}
    for block in range(_BLOCKS):
        at = f"v.blk.{block}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            weights[f"{at}{name}.weight"], weights[f"{at}{name}.bias"] = matrix(EMBED, EMBED), bias(EMBED)
        for name in ("ln1", "ln2"):
            weights[f"{at}{name}.weight"], weights[f"{at}{name}.bias"] = 1 + bias(EMBED), bias(EMBED)
        weights[f"{at}ffn_up.weight"], weights[f"{at}ffn_down.weight"] = matrix(_UNITS, EMBED), matrix(EMBED, _UNITS)
        weights[f"{at}ffn_up.bias"], weights[f"{at}ffn_down.bias"] = bias(_UNITS), bias(EMBED)
    if kind != "qwen2vl_merger":
        weights["v.position_embd.weight"] = matrix((SIDE // _PATCH) ** 2, EMBED, gain=2.0)
    if kind != "mlp":
        weights["v.post_ln.weight"], weights["v.post_ln.bias"] = 1 + bias(EMBED), bias(EMBED)
    if kind == "mlp":
        weights |= {"mm.0.weight": matrix(width, EMBED), "mm.0.bias": bias(width)}
        weights |= {"mm.2.weight": matrix(width, width, gain=4.0), "mm.2.bias": bias(width)}
    elif kind == "gemma3":
        weights["mm.input_projection.weight"] = matrix(EMBED, width, gain=4.0)
        weights["mm.soft_emb_norm.weight"] = 1 + bias(EMBED)
    else:
        weights["v.patch_embd.weight.1"] = matrix(EMBED, 3, _PATCH, _PATCH, gain=4.0)
        weights |= {"mm.0.weight": matrix(4 * EMBED, 4 * EMBED), "mm.0.bias": bias(4 * EMBED)}
        weights |= {"mm.2.weight": matrix(width, 4 * EMBED, gain=4.0), "mm.2.bias": bias(width)}
    numbers: dict[str, Any] = {
        "embedding_length": EMBED, "attention.head_count": 2, "feed_forward_length": _UNITS, "block_count": _BLOCKS,
        "projection_dim": width, "image_size": SIDE, "patch_size": _PATCH, "attention.layer_norm_epsilon": 1e-5,
        "image_mean": [0.5] * 3, "image_std": [0.25] * 3,
    }  # fmt: skip
    if kind == "gemma3":
        numbers["projector.scale_factor"] = 2
    writer = gguf.GGUFWriter(path, "clip")
    if title:
        writer.add_name(title)
    if tuning:
        writer.add_finetune(tuning)
    add_all(writer, "clip.", {"has_vision_encoder": True, "projector_type": kind, "use_gelu": True})
    add_all(writer, "clip.vision.", numbers)
    for name, values in weights.items():
        writer.add_tensor(name, values)
    finish(writer)
    return path


def write_picture(path: Path, seed: int = 1, size: tuple[int, int] = (48, 32)) -> Path:
    rng = np.random.default_rng(seed)
    squares = rng.integers(0, 256, (4, 6, 3), np.uint8)
    Image.fromarray(squares).resize(size, Image.Resampling.NEAREST).save(path)
    return path
