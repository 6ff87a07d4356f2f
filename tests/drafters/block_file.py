"""Writers of a tiny target, and of DFlash, DFlash2 and DSpark heads for it whose guesses are known.

The target's token depends on the last one alone: it goes round in a ring of eight tokens, and now and then leaves it
for another ring. In a ring, each token is the one that follows the token nine places before: a head whose rows look
there, and nowhere else, is right for a whole block, as long as the features of the text stand in their places.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tests.drafters.mtp_file import write_weights

WIDTH: Final = 64
RINGS: Final = 5
RING: Final = 8
FIRST: Final = 8  # of the rings' tokens; special ones and some that are never written stand before
TOKENS: Final = FIRST + RINGS * RING
MASK: Final = 3
BLOCK: Final = 7
LAYERS: Final = 3
HEAD, FF = 64, 32
BIAS: Final = TOKENS  # a number that every embedding shares

Weights = dict[str, NDArray[Any]]


def follower(token: int) -> int:
    ring, place = divmod(token - FIRST, RING)
    return FIRST + ring * RING + (place + 1) % RING


def embedding() -> NDArray[np.float32]:
    """One number for each token, and one that all share; the mask has the latter alone."""
    rows = np.eye(TOKENS, WIDTH, dtype=np.float32)
    rows[MASK] = 0.0
    rows[:, BIAS] = 1.0
    return rows


def output() -> NDArray[np.float32]:
    """Says the follower; the next best is in another ring."""
    rows = np.zeros((TOKENS, WIDTH), np.float32)
    for token in range(FIRST, TOKENS):
        rows[follower(token), token] = 1.5
        rows[FIRST + (token - FIRST + RING + 3) % (RINGS * RING), token] += 1.1
    return rows


def write_target(path: Path, architecture: str = "qwen3") -> Path:
    """Writes a target of about 200 kB whose layers read everything and add nothing."""
    rng = np.random.default_rng(2)
    weights: Weights = {
        "token_embd.weight": embedding(),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": output(),
    }
    for number in range(LAYERS):
        weights |= layer(f"blk.{number}", rng)
    if architecture == "llama":
        weights = {
            name: values for name, values in weights.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))
        }
    return write_file(path, architecture, weights, {}, LAYERS)


def write_head(
    path: Path, kind: str = "dflash", right: bool = True, own: bool = False, keys: Mapping[str, Any] = {}
) -> Path:
    """Writes a head (``dflash``, ``dflash2`` or ``dspark``) that reads the inputs of the first layer and of the last
    one, which are the same. A wrong one looks eight places back, not nine; ``own``: its own embedding and vocabulary
    matrix."""
    same = np.eye(WIDTH, dtype=np.float32)
    weights: Weights = {
        "fc.weight": np.concatenate((same, same), axis=1) / 2,
        "enc.output_norm.weight": np.ones(WIDTH, np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    weights |= layer("blk.0", np.random.default_rng(3))
    weights |= look_back("blk.0", RING + 1 if right else RING)
    if kind == "dflash2":
        weights |= _selector("blk.0")
        keys = {"conv_kernel_size": 4, "conv_group_size": 8, "selector_rank": TOKENS, "selector_top_k": 5, **keys}
    if kind == "dspark":
        weights |= layer("blk.0", np.random.default_rng(3)) | _markov(right)
    if own:
        weights |= {"token_embd.weight": embedding(), "output.weight": output()}
    settings: dict[str, Any] = {"target_layers": [0, LAYERS - 1], "block_size": BLOCK, **keys}
    return write_file(path, "dflash", weights, settings, 1)


def _selector(at: str) -> Weights:
    """A selector that prefers the follower of the token before, and convolutions that change nothing."""
    base = np.zeros((2, 4, WIDTH), np.float32)
    base[:, 0] = 1.0
    from_bias = np.zeros((TOKENS, WIDTH), np.float32)
    from_bias[:, BIAS] = 1.0
    return {
        "selector_predecessor.weight": np.eye(TOKENS, dtype=np.float32),
        "selector_successor.weight": output()[:, :TOKENS],
        "selector_hidden.weight": from_bias,
        f"{at}.attn_conv_base": base,
        f"{at}.ffn_conv_base": base,
        f"{at}.attn_conv_proj.weight": np.zeros((2 * 4 * WIDTH // 8, WIDTH), np.float32),
        f"{at}.ffn_conv_proj.weight": np.zeros((2 * 4 * WIDTH // 8, WIDTH), np.float32),
    }


def _markov(right: bool) -> Weights:
    """A Markov term that says what the target says after a token, or what it says one token later."""
    says = output()[:, :TOKENS]
    if not right:
        says = np.stack([says[follower(token) if token >= FIRST else token] for token in range(TOKENS)])
    return {
        "markov_w1.weight": np.eye(TOKENS, dtype=np.float32),
        "markov_w2.weight": 6 * says,
        "conf_proj.weight": np.zeros((1, WIDTH + TOKENS), np.float32),
        "conf_proj.bias": np.full(1, 3.0, np.float32),
    }


def look_back(at: str, back: int) -> Weights:
    """Attention that reads one place, so far back, and passes on what stands there.

    All keys are alike, and all queries: RoPE alone tells the places apart. It turns each pair of numbers by an angle
    for each place, so that a query that is turned back by as many places meets the key there with all pairs in step.
    """
    half = HEAD // 2
    angles = back * 10.0 ** (-4.0 * np.arange(half) / half)  # of a base of 10,000
    query = np.concatenate((np.cos(angles), -np.sin(angles)))
    key = np.concatenate((np.ones(half), np.zeros(half)))
    norm, everything = np.full(HEAD, 8.0, np.float32), np.zeros((WIDTH, WIDTH), np.float32)
    np.fill_diagonal(everything[:TOKENS, :TOKENS], 1.0)
    from_bias = np.zeros((HEAD, WIDTH), np.float32)
    query_matrix, key_matrix = from_bias.copy(), from_bias.copy()
    query_matrix[:, BIAS], key_matrix[:, BIAS] = query, key
    return {
        f"{at}.attn_q.weight": query_matrix, f"{at}.attn_k.weight": key_matrix, f"{at}.attn_v.weight": everything,
        f"{at}.attn_output.weight": everything, f"{at}.attn_q_norm.weight": norm, f"{at}.attn_k_norm.weight": norm,
    }  # fmt: skip


def layer(at: str, rng: np.random.Generator) -> Weights:
    def matrix(*shape: int) -> NDArray[np.float32]:
        return (0.1 * rng.normal(size=shape)).astype(np.float32)

    return {
        f"{at}.attn_norm.weight": np.ones(WIDTH, np.float32),
        f"{at}.attn_q.weight": matrix(HEAD, WIDTH),
        f"{at}.attn_k.weight": matrix(HEAD, WIDTH),
        f"{at}.attn_v.weight": matrix(HEAD, WIDTH),
        f"{at}.attn_output.weight": np.zeros((WIDTH, HEAD), np.float32),
        f"{at}.attn_q_norm.weight": np.ones(HEAD, np.float32),
        f"{at}.attn_k_norm.weight": np.ones(HEAD, np.float32),
        f"{at}.ffn_norm.weight": np.ones(WIDTH, np.float32),
        f"{at}.ffn_gate.weight": matrix(FF, WIDTH),
        f"{at}.ffn_up.weight": matrix(FF, WIDTH),
        f"{at}.ffn_down.weight": np.zeros((WIDTH, FF), np.float32),
    }


def write_file(path: Path, architecture: str, weights: Weights, settings: Mapping[str, Any], layers: int) -> Path:
    shared: dict[str, Any] = {
        "block_count": layers, "context_length": 512, "embedding_length": WIDTH, "feed_forward_length": FF,
        "attention.head_count": 1, "attention.head_count_kv": 1, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0,
        "rope.dimension_count": HEAD,
    }  # fmt: skip
    return write_weights(path, architecture, weights, {**shared, **settings}, ["<unk>", "<s>", "</s>", "<mask>"])
