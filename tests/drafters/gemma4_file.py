"""Writers of a tiny Gemma 4 target, with the rings of ``block_file``, and of an assistant that reads its KV cache."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tests.drafters import block_file
from tests.drafters.block_file import BIAS, FIRST, HEAD, TOKENS, WIDTH, Weights, layer, look_back, output, write_file

_OWN: Final = 80  # width of the assistant
_PATTERN: Final = [True, True, False]  # of the target's layers: which have a sliding window
_SIZES: Final[dict[str, Any]] = {
    "attention.key_length_swa": HEAD, "attention.value_length_swa": HEAD, "attention.sliding_window": 16,
    "rope.freq_base_swa": 10000.0, "rope.dimension_count_swa": HEAD,
}  # fmt: skip


def write_target(path: Path) -> Path:
    """Writes a target whose layers add nothing, and whose last one keeps every token in its cache."""
    rng = np.random.default_rng(4)
    weights: Weights = {
        "token_embd.weight": block_file.embedding(),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": output(),
        "rope_freqs.weight": np.ones(HEAD // 2, np.float32),
    }
    for number in range(len(_PATTERN)):
        weights |= layer(f"blk.{number}", rng) | _norms(f"blk.{number}", WIDTH)
    last = f"blk.{len(_PATTERN) - 1}"
    weights |= look_back(last, 0) | {f"{last}.attn_output.weight": np.zeros((WIDTH, HEAD), np.float32)}
    settings: dict[str, Any] = {"embedding_length_per_layer_input": 0, "attention.shared_kv_layers": 0}
    settings |= {**_SIZES, "attention.sliding_window_pattern": _PATTERN}
    return write_file(path, "gemma4", weights, settings, len(_PATTERN))


def write_assistant(path: Path, right: bool = True, cache: bool = False) -> Path:
    """Writes an assistant; a wrong one says what comes two tokens later. ``cache``: it hears the target's cache alone,
    eight places before the last token, and is right for the first token of a draft if it looks there."""
    rng = np.random.default_rng(5)
    own = np.zeros((TOKENS, _OWN), np.float32)
    own[:, :WIDTH] = output()
    if not right:
        own = np.stack([own[block_file.follower(token) if token >= FIRST else token] for token in range(TOKENS)])
    hear = np.zeros((_OWN, 2 * WIDTH), np.float32)
    np.fill_diagonal(hear[:WIDTH, :WIDTH], 1.0)
    if cache:
        hear[:BIAS] = 0.0
    weights: Weights = {
        "token_embd.weight": own,
        "output_norm.weight": np.ones(_OWN, np.float32),
        "nextn.pre_projection.weight": hear,
        "nextn.post_projection.weight": np.eye(WIDTH, _OWN, dtype=np.float32),
        "rope_freqs.weight": np.ones(HEAD // 2, np.float32),
    }
    for number in range(2):
        at = f"blk.{number}"
        weights |= (
            _wide(layer(at, rng)) | _norms(at, _OWN) | {f"{at}.layer_output_scale.weight": np.ones(1, np.float32)}
        )
    if cache:
        looking = look_back("blk.1", block_file.RING)
        looking["blk.1.attn_output.weight"] = 100 * looking["blk.1.attn_output.weight"]
        weights |= _wide(looking)
    missing = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
    weights = {name: values for name, values in weights.items() if not name.endswith(missing)}
    settings: dict[str, Any] = {"embedding_length": _OWN, "embedding_length_out": WIDTH, "nextn_predict_layers": 2}
    settings |= {**_SIZES, "attention.sliding_window_pattern": [True, False]}
    return write_file(path, "gemma4-assistant", weights, settings, 2)


def _norms(at: str, width: int) -> Weights:
    return {f"{at}.{name}.weight": np.ones(width, np.float32) for name in ("post_attention_norm", "post_ffw_norm")}


def _wide(weights: Weights) -> Weights:
    """The same layer for the assistant's width; further numbers are neither read nor written."""
    into = (".attn_output.weight", ".ffn_down.weight")

    def wider(name: str, values: NDArray[Any]) -> NDArray[Any]:
        if name.endswith(("attn_norm.weight", "ffn_norm.weight")):
            return np.ones(_OWN, np.float32)
        if values.ndim == 1:
            return values
        rows, columns = values.shape
        shape = (_OWN, columns) if name.endswith(into) else (rows, _OWN)
        found = np.zeros(shape, np.float32)
        found[:rows, :columns] = values
        return found

    return {name: wider(name, values) for name, values in weights.items()}
