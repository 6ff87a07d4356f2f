"""Writers of tiny models with an MTP layer whose guesses are right, wrong, or right for one reason only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

WIDTH: Final = 64
TOKENS: Final = 48
LAYERS: Final = 3  # the last one predicts
ARCHITECTURES: Final = ("glm4moe", "qwen35")
"""One whose memory is attention alone, and a hybrid one."""
Guesses = Literal["right", "wrong", "from the feature"]
_HEAD, _HEADS, _FF, _EXPERTS = 16, 4, 32, 2

Weights = dict[str, NDArray[np.float32]]


def follower(token: int) -> int:
    """What the target says after a token: one of the others, in one cycle through them all but the first three."""
    return 3 + (token - 3 + 17) % (TOKENS - 3)


def _matrix(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (0.1 * rng.normal(size=shape)).astype(np.float32)


def _layer(rng: np.random.Generator, architecture: str, layer: int) -> Weights:
    """A layer that reads everything and adds nothing: its two last matrices are zeros."""
    at, twice = f"blk.{layer}", 2 if architecture == "qwen35" else 1
    found = {
        f"{at}.attn_norm.weight": np.ones(WIDTH, np.float32),
        f"{at}.post_attention_norm.weight": np.ones(WIDTH, np.float32),
        f"{at}.attn_q.weight": _matrix(rng, twice * _HEADS * _HEAD, WIDTH),
        f"{at}.attn_k.weight": _matrix(rng, _HEAD, WIDTH),
        f"{at}.attn_v.weight": _matrix(rng, _HEAD, WIDTH),
        f"{at}.attn_output.weight": np.zeros((WIDTH, _HEADS * _HEAD), np.float32),
        f"{at}.attn_q_norm.weight": np.ones(_HEAD, np.float32),
        f"{at}.attn_k_norm.weight": np.ones(_HEAD, np.float32),
    }
    if architecture == "qwen35" and layer == 0:
        found = {name: values for name, values in found.items() if "attn_" not in name or "attn_norm" in name}
        found |= {
            f"{at}.attn_qkv.weight": _matrix(rng, 128, WIDTH),
            f"{at}.attn_gate.weight": _matrix(rng, 64, WIDTH),
            f"{at}.ssm_conv1d.weight": _matrix(rng, 128, 4),
            f"{at}.ssm_dt.bias": _matrix(rng, 2),
            f"{at}.ssm_a": -np.ones(2, np.float32),
            f"{at}.ssm_beta.weight": _matrix(rng, 2, WIDTH),
            f"{at}.ssm_alpha.weight": _matrix(rng, 2, WIDTH),
            f"{at}.ssm_norm.weight": np.ones(32, np.float32),
            f"{at}.ssm_out.weight": np.zeros((WIDTH, 64), np.float32),
        }
    if architecture == "glm4moe":
        found |= {
            f"{at}.ffn_gate_inp.weight": _matrix(rng, _EXPERTS, WIDTH),
            f"{at}.exp_probs_b.bias": np.zeros(_EXPERTS, np.float32),
            f"{at}.ffn_gate_exps.weight": _matrix(rng, _EXPERTS, _FF, WIDTH),
            f"{at}.ffn_up_exps.weight": _matrix(rng, _EXPERTS, _FF, WIDTH),
            f"{at}.ffn_down_exps.weight": np.zeros((_EXPERTS, WIDTH, _FF), np.float32),
            f"{at}.ffn_gate_shexp.weight": _matrix(rng, _FF, WIDTH),
            f"{at}.ffn_up_shexp.weight": _matrix(rng, _FF, WIDTH),
            f"{at}.ffn_down_shexp.weight": np.zeros((WIDTH, _FF), np.float32),
        }
        return found
    return found | {
        f"{at}.ffn_gate.weight": _matrix(rng, _FF, WIDTH),
        f"{at}.ffn_up.weight": _matrix(rng, _FF, WIDTH),
        f"{at}.ffn_down.weight": np.zeros((WIDTH, _FF), np.float32),
    }


def _output(steps: int) -> NDArray[np.float32]:
    """Says the token that comes so many steps after the one that a hidden state stands for; the next best is near."""
    output = np.zeros((TOKENS, WIDTH), np.float32)
    for token in range(TOKENS):
        then = token
        for _ in range(steps):
            then = follower(then)
        output[then, token] = 1.0
        output[3 + (then + 5) % (TOKENS - 3), token] += 0.75
    return output


def write_mtp(path: Path, architecture: str, guesses: Guesses = "right") -> Path:
    """Writes a model whose token depends on the last one alone, of about 300 kB.

    Args:
        path: The file.
        architecture: One of ``ARCHITECTURES``.
        guesses: ``right``: the MTP layer passes the token's embedding through, so that it says what the target does.
            ``wrong``: it passes on another token's. ``from the feature``: it passes the feature of the place before the
            token through, and its own vocabulary matrix goes two steps: right only for the first token of a draft, and
            only if it is given the right feature.
    """
    rng = np.random.default_rng(1)
    weights: Weights = {
        "token_embd.weight": np.eye(TOKENS, WIDTH, dtype=np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": _output(1),
    }
    for layer in range(LAYERS):
        weights |= _layer(rng, architecture, layer)
    at, zeros, same = f"blk.{LAYERS - 1}.nextn", np.zeros((WIDTH, WIDTH), np.float32), np.eye(WIDTH, dtype=np.float32)
    halves = {
        "right": (same, zeros),
        "wrong": (np.roll(same, 3, axis=0), zeros),
        "from the feature": (zeros, same),
    }
    weights[f"{at}.eh_proj.weight"] = np.concatenate(halves[guesses], axis=1)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        weights[f"{at}.{name}.weight"] = np.ones(WIDTH, np.float32)
    if guesses == "from the feature":
        weights[f"{at}.shared_head_head.weight"] = _output(2)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in _metadata(architecture).items():
        {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)](
            f"{architecture}.{key}", value
        )
    writer.add_tokenizer_model("llama")
    names = ["<unk>", "<s>", "</s>", *(f"\u2581w{token}" for token in range(3, TOKENS))]
    writer.add_token_list(names)
    writer.add_token_scores([-float(token) for token in range(TOKENS)])
    writer.add_token_types([2, 3, 3, *[1] * (TOKENS - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, values in weights.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(architecture: str) -> dict[str, Any]:
    shared = {
        "block_count": LAYERS,
        "nextn_predict_layers": 1,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": _FF,
        "attention.head_count": _HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": _HEAD,
        "attention.value_length": _HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": _HEAD,
    }
    if architecture == "glm4moe":
        return shared | {
            "expert_count": _EXPERTS,
            "expert_used_count": 1,
            "expert_shared_count": 1,
            "expert_feed_forward_length": _FF,
        }
    return shared | {
        "full_attention_interval": 2,
        "rope.dimension_sections": [3, 3, 2, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 64,
        "ssm.state_size": 32,
        "ssm.time_step_rank": 2,
        "ssm.group_count": 1,
    }
