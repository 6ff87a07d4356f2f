"""Writers of tiny models with an MTP layer whose guesses are right, wrong, or right for one reason only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import gguf
import numpy as np
from numpy.typing import NDArray
from tests.models.kinds import add_all, finish

WIDTH: Final = 64
TOKENS: Final = 48
LAYERS: Final = 3  # the last one predicts
CHARACTERS: Final = "9\u2581\nabcdefghijklmnopqrstuvwxyz012345678<|>_.,:"
"""What the tokens from the third on say: as much as chats in small letters and the marks around images need."""
ARCHITECTURES: Final = ("glm4moe", "deepseek2", "cohere2moe", "hy_v3", "step35", "mimo2", "qwen35", "qwen35moe")
"""Some whose memory is attention alone, one of them latent and some with sliding windows, and two hybrid ones."""
_HYBRID: Final = ("qwen35", "qwen35moe")
_FFN_NORM: Final = ("deepseek2", "hy_v3", "step35", "mimo2")
_DENSE: Final = ("qwen35", "hy_v3", "step35", "mimo2")
Guesses = Literal["right", "wrong", "from the feature"]
Part = Literal["all", "target", "layer"]
_HEAD, _HEADS, _FF, _EXPERTS, _RANK, _TURNED = 16, 4, 32, 2, 16, 8

Weights = dict[str, NDArray[np.float32]]


def follower(token: int) -> int:
    """What the target says after a token: one of the others, in one cycle through them all but the first three."""
    return 3 + (token - 3 + 17) % (TOKENS - 3)


def _matrix(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (0.1 * rng.normal(size=shape)).astype(np.float32)


def _layer(rng: np.random.Generator, architecture: str, layer: int) -> Weights:
    """A layer that reads everything and adds nothing: its last matrices are zeros."""
    at = f"blk.{layer}"
    norm = "ffn_norm" if architecture in _FFN_NORM else "post_attention_norm"
    found = {f"{at}.{name}.weight": np.ones(WIDTH, np.float32) for name in ("attn_norm", norm)}
    if architecture == "deepseek2":
        found |= _latent_attention(rng, at)
    elif architecture in _HYBRID and layer == 0:
        found |= _delta_net(rng, at)
    else:
        found |= _attention(rng, at, 2 if architecture in _HYBRID else 1)
    found |= _network(rng, at) if architecture in _DENSE else _experts(rng, architecture, at)
    if architecture == "mimo2":
        parts = [found.pop(f"{at}.attn_{part}.weight") for part in "qkv"]
        found[f"{at}.attn_qkv.weight"] = np.concatenate(parts)
    if architecture in ("cohere2moe", "mimo2"):
        unknown = ("attn_q_norm", "attn_k_norm", *((norm, "exp_probs_b") if architecture == "cohere2moe" else ()))
        found = {name: values for name, values in found.items() if not name.split(".")[2].startswith(unknown)}
    return found


def _attention(rng: np.random.Generator, at: str, gated: int) -> Weights:
    return {
        f"{at}.attn_q.weight": _matrix(rng, gated * _HEADS * _HEAD, WIDTH),
        f"{at}.attn_k.weight": _matrix(rng, _HEAD, WIDTH),
        f"{at}.attn_v.weight": _matrix(rng, _HEAD, WIDTH),
        f"{at}.attn_output.weight": np.zeros((WIDTH, _HEADS * _HEAD), np.float32),
        f"{at}.attn_q_norm.weight": np.ones(_HEAD, np.float32),
        f"{at}.attn_k_norm.weight": np.ones(_HEAD, np.float32),
    }


def _latent_attention(rng: np.random.Generator, at: str) -> Weights:
    return {
        f"{at}.attn_q_a.weight": _matrix(rng, _RANK, WIDTH),
        f"{at}.attn_q_a_norm.weight": np.ones(_RANK, np.float32),
        f"{at}.attn_q_b.weight": _matrix(rng, _HEADS * (_HEAD + _TURNED), _RANK),
        f"{at}.attn_kv_a_mqa.weight": _matrix(rng, _RANK + _TURNED, WIDTH),
        f"{at}.attn_kv_a_norm.weight": np.ones(_RANK, np.float32),
        f"{at}.attn_k_b.weight": _matrix(rng, _HEADS, _RANK, _HEAD),
        f"{at}.attn_v_b.weight": _matrix(rng, _HEADS, _HEAD, _RANK),
        f"{at}.attn_output.weight": np.zeros((WIDTH, _HEADS * _HEAD), np.float32),
    }


def _delta_net(rng: np.random.Generator, at: str) -> Weights:
    return {
        f"{at}.ssm_beta.weight": _matrix(rng, 2, WIDTH),
        f"{at}.ssm_alpha.weight": _matrix(rng, 2, WIDTH),
        f"{at}.attn_qkv.weight": _matrix(rng, 128, WIDTH),
        f"{at}.attn_gate.weight": _matrix(rng, 64, WIDTH),
        f"{at}.ssm_conv1d.weight": _matrix(rng, 128, 4),
        f"{at}.ssm_dt.bias": _matrix(rng, 2),
        f"{at}.ssm_a": -np.ones(2, np.float32),
        f"{at}.ssm_norm.weight": np.ones(32, np.float32),
        f"{at}.ssm_out.weight": np.zeros((WIDTH, 64), np.float32),
    }


def _network(rng: np.random.Generator, at: str, kind: str = "") -> Weights:
    return {
        f"{at}.ffn_gate{kind}.weight": _matrix(rng, _FF, WIDTH),
        f"{at}.ffn_up{kind}.weight": _matrix(rng, _FF, WIDTH),
        f"{at}.ffn_down{kind}.weight": np.zeros((WIDTH, _FF), np.float32),
    }


def _experts(rng: np.random.Generator, architecture: str, at: str) -> Weights:
    found = _network(rng, at, "_shexp") | {
        f"{at}.ffn_gate_inp.weight": _matrix(rng, _EXPERTS, WIDTH),
        f"{at}.ffn_gate_exps.weight": _matrix(rng, _EXPERTS, _FF, WIDTH),
        f"{at}.ffn_up_exps.weight": _matrix(rng, _EXPERTS, _FF, WIDTH),
        f"{at}.ffn_down_exps.weight": np.zeros((_EXPERTS, WIDTH, _FF), np.float32),
    }
    if architecture in _HYBRID:
        return found | {f"{at}.ffn_gate_inp_shexp.weight": _matrix(rng, WIDTH)}
    return found | {f"{at}.exp_probs_b.bias": np.zeros(_EXPERTS, np.float32)}


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


def write_mtp(path: Path, architecture: str, guesses: Guesses = "right", part: Part = "all") -> Path:
    """Writes a model whose token depends on the last one alone, of about 300 kB. A right MTP layer passes the token's
    embedding through, a wrong one another token's; one "from the feature" passes the feature of the place before the
    token, and its own vocabulary matrix goes two steps: it is right only for the first token of a draft. ``part``: the
    model without its layer ("target"), or a file of the layer."""
    rng = np.random.default_rng(1)
    weights: Weights = {
        "token_embd.weight": np.eye(TOKENS, WIDTH, dtype=np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": _output(1),
    }
    for layer in range(LAYERS):
        weights |= _layer(rng, architecture, layer)
    at, zeros, same = f"blk.{LAYERS - 1}.nextn", np.zeros((WIDTH, WIDTH), np.float32), np.eye(WIDTH, dtype=np.float32)
    halves = {"right": (same, zeros), "wrong": (np.roll(same, 3, axis=0), zeros), "from the feature": (zeros, same)}
    weights[f"{at}.eh_proj.weight"] = np.concatenate(halves[guesses], axis=1)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        weights[f"{at}.{name}.weight"] = np.ones(WIDTH, np.float32)
    if guesses == "from the feature":
        weights[f"{at}.shared_head_head.weight"] = _output(2)
    settings = _metadata(architecture)
    last = f"blk.{LAYERS - 1}."
    if part == "layer":
        weights = {name: values for name, values in weights.items() if name.startswith(last) or "blk." not in name}
    elif part == "target":
        weights = {name: values for name, values in weights.items() if not name.startswith(last)}
        settings |= {"block_count": LAYERS - 1, "nextn_predict_layers": 0}
    return write_weights(path, architecture, weights, settings, ["<unk>", "<s>", "</s>"])


def write_weights(
    path: Path, architecture: str, weights: Mapping[str, Any], settings: Mapping[str, Any], special: list[str]
) -> Path:
    """Writes a model of 48 tokens, of which the first ones are special; the settings lack the architecture's name."""
    writer = gguf.GGUFWriter(path, architecture)
    add_all(writer, f"{architecture}.", settings)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *CHARACTERS[len(special) - 3 :]])
    writer.add_token_scores([-float(token) for token in range(TOKENS)])
    writer.add_token_types([2, *[3] * (len(special) - 1), *[1] * (TOKENS - len(special))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if architecture == "dflash":
        writer.add_mask_token_id(special.index("<mask>"))
    for name, values in weights.items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    finish(writer)
    return path


def _metadata(architecture: str) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "block_count": LAYERS, "nextn_predict_layers": 1, "context_length": 512, "embedding_length": WIDTH,
        "feed_forward_length": _FF, "attention.head_count": _HEADS, "attention.head_count_kv": 1,
        "attention.key_length": _HEAD, "attention.value_length": _HEAD, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0, "rope.dimension_count": _HEAD,
    }  # fmt: skip
    experts: dict[str, Any] = {"expert_count": _EXPERTS, "expert_used_count": 1, "expert_feed_forward_length": _FF}
    latent: dict[str, Any] = {
        "attention.q_lora_rank": _RANK, "attention.kv_lora_rank": _RANK, "attention.key_length": _RANK + _TURNED,
        "attention.value_length": _RANK, "attention.key_length_mla": _HEAD + _TURNED,
        "attention.value_length_mla": _HEAD, "rope.dimension_count": _TURNED, "leading_dense_block_count": 0,
    }  # fmt: skip
    hybrid: dict[str, Any] = {
        "full_attention_interval": 2, "rope.dimension_sections": [3, 3, 2, 0], "ssm.conv_kernel": 4,
        "ssm.inner_size": 64, "ssm.state_size": 32, "ssm.time_step_rank": 2, "ssm.group_count": 1,
    }  # fmt: skip
    windows: dict[str, Any] = {
        "expert_feed_forward_length": _FF,
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True, False],
    }
    of_kind = {
        "glm4moe": experts | {"expert_shared_count": 1},
        "deepseek2": experts | latent | {"expert_shared_count": 1},
        "cohere2moe": experts
        | {
            "expert_shared_count": 1, "leading_dense_block_count": 0, "attention.sliding_window": 16,
            "attention.sliding_window_pattern": 4, "logit_scale": 1.0,
        },
        "hy_v3": {"expert_feed_forward_length": _FF},
        **dict.fromkeys(("step35", "mimo2"), windows),
        "qwen35": hybrid,
        "qwen35moe": experts | hybrid | {"expert_shared_feed_forward_length": _FF},
    }  # fmt: skip
    return shared | of_kind[architecture]
