"""Writers of tiny models of random weights, one of each kind that llama.cpp keeps in a memory of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

WIDTH: Final = 32
LAYERS: Final = 4
WINDOW: Final = 24  # of the sliding-window kind; shorter than a test's text, or the window would never matter
_FF: Final = 64
_HEADS: Final = 4
_HEADS_KV: Final = 2
_HEAD: Final = 16  # width of a head
_EXPERTS: Final = 4
_KV: Final = (0, 0, _HEADS_KV, 0)  # of hybrid kinds: one layer has attention
_STATE, _GROUPS, _STATE_HEADS, _KERNEL, _INNER = 16, 1, 4, 4, 64  # of Mamba-2
_WORDS: Final = "the a of to and in is it you that he was for on are with as his they be at one have this from"
_PIECES: Final = [f"\u2581{word}" for word in _WORDS.split()]
TOKENS: Final = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES]
_TYPES: Final = [2, 3, 3, *[6] * 256, *[1] * len(_PIECES)]
_SHARE: Final = WIDTH // _HEADS  # width of a head where no key may say it
_BEFORE: Final = ("attn_norm", "ffn_norm")
_ROUTED: Final = {"expert_count": _EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": _FF}
_SCALES: Final = {"logit_scale": 1.0, "embedding_scale": 1.0, "residual_scale": 1.0, "attention.scale": 0.25}

Weights = dict[str, NDArray[np.float32]]
Metadata = dict[str, Any]


class _Random:
    def __init__(self, seed: int, blur: float, head: int = _HEAD) -> None:
        self.head = head
        self._rng, self._noise, self._blur = np.random.default_rng(seed), np.random.default_rng(seed + 1), blur

    def matrix(self, *shape: int, gain: float = 1.0) -> NDArray[np.float32]:
        """A matrix (or a stack of them) [..., out, in] that keeps the size of what it is applied to."""
        drawn = self._rng.normal(0, 1, shape) + self._blur * self._noise.normal(0, 1, shape)
        return np.asarray(drawn * gain / shape[-1] ** 0.5, np.float32)

    def norm(self, *shape: int, size: float = 1.0) -> NDArray[np.float32]:
        return np.asarray(size * (1 + 0.1 * self._rng.normal(0, 1, shape)), np.float32)

    def between(self, low: float, high: float, *shape: int) -> NDArray[np.float32]:
        return self._rng.uniform(low, high, shape).astype(np.float32)


def _attention(r: _Random, at: str, head: int = 0, q_factor: int = 1, norms: bool = False) -> Weights:
    head = head or r.head
    found = {
        f"{at}.attn_q.weight": r.matrix(q_factor * _HEADS * head, WIDTH),
        f"{at}.attn_k.weight": r.matrix(_HEADS_KV * head, WIDTH),
        f"{at}.attn_v.weight": r.matrix(_HEADS_KV * head, WIDTH),
        f"{at}.attn_output.weight": r.matrix(WIDTH, _HEADS * head),
    }
    if norms:
        found |= {f"{at}.attn_q_norm.weight": r.norm(head), f"{at}.attn_k_norm.weight": r.norm(head)}
    return found


def _network(r: _Random, at: str) -> Weights:
    return {
        f"{at}.ffn_gate.weight": r.matrix(_FF, WIDTH),
        f"{at}.ffn_up.weight": r.matrix(_FF, WIDTH),
        f"{at}.ffn_down.weight": r.matrix(WIDTH, _FF),
    }


def _experts(r: _Random, at: str) -> Weights:
    return {
        f"{at}.ffn_gate_inp.weight": r.matrix(_EXPERTS, WIDTH, gain=2.0),
        f"{at}.ffn_gate_exps.weight": r.matrix(_EXPERTS, _FF, WIDTH),
        f"{at}.ffn_up_exps.weight": r.matrix(_EXPERTS, _FF, WIDTH),
        f"{at}.ffn_down_exps.weight": r.matrix(_EXPERTS, WIDTH, _FF),
    }


def _norms(r: _Random, at: str, *names: str) -> Weights:
    return {f"{at}.{name}.weight": r.norm(WIDTH) for name in names}


def _layers(layer: Callable[[str, int], Weights]) -> Weights:
    """The weights of all layers, from a layer's name and number."""
    return {name: values for at in range(LAYERS) for name, values in layer(f"blk.{at}", at).items()}


def _dense(r: _Random, norms: bool = False, after: bool = False) -> Weights:
    """Attention and a network in each layer, with norms of heads and ``after`` each part."""

    def behind(at: str, _: int) -> Weights:
        # small: ggml reads GELU from a table of half floats, so that another order of sums may move it by 1e-3
        return _norms(r, at, "post_attention_norm") | {f"{at}.post_ffw_norm.weight": r.norm(WIDTH, size=0.05)}

    found = _layers(lambda at, _: _attention(r, at, norms=norms) | _network(r, at) | _norms(r, at, *_BEFORE))
    return found | (_layers(behind) if after else {})


def _llama(r: _Random) -> tuple[Metadata, Weights]:
    return {}, _dense(r)


def _qwen2vl(r: _Random) -> tuple[Metadata, Weights]:
    def layer(at: str, _: int) -> Weights:
        found = _attention(r, at, _SHARE) | _network(r, at) | _norms(r, at, *_BEFORE)
        for name, heads in (("q", _HEADS), ("k", _HEADS_KV), ("v", _HEADS_KV)):
            found[f"{at}.attn_{name}.bias"] = r.matrix(heads * _SHARE, gain=0.1)
        return found

    return {"rope.dimension_sections": [1, 1, 2, 0], **_heads_of(_SHARE)}, _layers(layer)


def _glm4(r: _Random) -> tuple[Metadata, Weights]:
    found = _dense(r, after=True)
    for layer in range(LAYERS):
        found[f"blk.{layer}.ffn_up.weight"] = np.concatenate(
            [found.pop(f"blk.{layer}.ffn_gate.weight"), found[f"blk.{layer}.ffn_up.weight"]]
        )
    return {}, found


def _gemma3(r: _Random) -> tuple[Metadata, Weights]:
    metadata = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 1e4}
    return metadata, _dense(r, norms=True, after=True)


def _qwen3moe(r: _Random) -> tuple[Metadata, Weights]:
    return dict(_ROUTED), _layers(
        lambda at, _: _attention(r, at, norms=True) | _norms(r, at, *_BEFORE) | _experts(r, at)
    )


def _lfm2(r: _Random) -> tuple[Metadata, Weights]:
    def layer(at: str, number: int) -> Weights:
        found = _network(r, at) | _norms(r, at, *_BEFORE)
        if _KV[number]:
            return found | _attention(r, at, _SHARE, norms=True)
        found[f"{at}.shortconv.conv.weight"] = r.matrix(WIDTH, 3, gain=1.5)
        found[f"{at}.shortconv.in_proj.weight"] = r.matrix(3 * WIDTH, WIDTH)
        found[f"{at}.shortconv.out_proj.weight"] = r.matrix(WIDTH, WIDTH)
        return found

    return {"attention.head_count_kv": [*_KV], "shortconv.l_cache": 3, **_heads_of(_SHARE)}, _layers(layer)


def _qwen35(r: _Random) -> tuple[Metadata, Weights]:
    def layer(at: str, number: int) -> Weights:
        found = _network(r, at) | _norms(r, at, "attn_norm", "post_attention_norm") | _delta_net(r, at, number)
        for part in () if number % 2 else ("beta", "alpha"):
            found[f"{at}.ssm_{part}.weight"] = r.matrix(_DELTA_HEADS, WIDTH)
        return found

    return {"rope.dimension_sections": [3, 3, 2, 0], **_DELTA}, _layers(layer)


def _qwen3next(r: _Random) -> tuple[Metadata, Weights]:
    def layer(at: str, number: int) -> Weights:
        found = _experts(r, at) | _norms(r, at, "attn_norm", "post_attention_norm") | _delta_net(r, at, number)
        found |= {name.replace(".weight", "_shexp.weight"): rows for name, rows in _network(r, at).items()}
        found[f"{at}.ffn_gate_inp_shexp.weight"] = r.norm(WIDTH)
        return found if number % 2 else found | {f"{at}.ssm_ba.weight": r.matrix(2 * _DELTA_HEADS, WIDTH)}

    return {"expert_shared_feed_forward_length": _FF, **_ROUTED, **_DELTA}, _layers(layer)


_DELTA_STATE: Final = 32
_DELTA_HEADS: Final = 2
_DELTA_KERNEL: Final = 4


def _delta_net(r: _Random, at: str, layer: int) -> Weights:
    """A gated delta net, or in every second layer gated attention."""
    if layer % 2:
        return _attention(r, at, q_factor=2, norms=True)
    keys, values = _DELTA_STATE, _DELTA_STATE * _DELTA_HEADS
    return {
        f"{at}.attn_qkv.weight": r.matrix(2 * keys + values, WIDTH),
        f"{at}.attn_gate.weight": r.matrix(values, WIDTH),
        f"{at}.ssm_conv1d.weight": r.matrix(2 * keys + values, _DELTA_KERNEL, gain=2.0),
        f"{at}.ssm_dt.bias": r.between(-2, 0, _DELTA_HEADS),
        f"{at}.ssm_a": r.between(-1, -0.1, _DELTA_HEADS),
        f"{at}.ssm_norm.weight": r.norm(_DELTA_STATE),
        f"{at}.ssm_out.weight": r.matrix(WIDTH, values),
    }


def _nemotron_h(r: _Random) -> tuple[Metadata, Weights]:
    ff = [0, _FF, 0, 0]

    def layer(at: str, number: int) -> Weights:
        found = _norms(r, at, "attn_norm")
        if ff[number]:
            up, down = r.matrix(_FF, WIDTH), r.matrix(WIDTH, _FF)
            return found | {f"{at}.ffn_up.weight": up, f"{at}.ffn_down.weight": down}
        return found | (_attention(r, at) if _KV[number] else _mamba2(r, at))

    sizes = {"feed_forward_length": ff, "attention.layer_norm_epsilon": 1e-5, **_MAMBA2}
    return {"attention.head_count_kv": [*_KV], **sizes}, _layers(layer)


def _granitehybrid(r: _Random) -> tuple[Metadata, Weights]:
    def layer(at: str, number: int) -> Weights:
        found = _network(r, at) | _norms(r, at, *_BEFORE)
        return found | (_attention(r, at) if _KV[number] else _mamba2(r, at))

    return {"attention.head_count_kv": [*_KV], **_SCALES, **_MAMBA2}, _layers(layer)


def _jamba(r: _Random) -> tuple[Metadata, Weights]:
    state, rank, kernel, inner = 16, 4, 4, 2 * WIDTH

    def layer(at: str, number: int) -> Weights:
        found = _network(r, at) | _norms(r, at, *_BEFORE)
        if _KV[number]:
            return found | _attention(r, at, _SHARE)
        found[f"{at}.ssm_in.weight"] = r.matrix(2 * inner, WIDTH)
        found[f"{at}.ssm_conv1d.weight"] = r.matrix(inner, kernel, gain=2.0)
        found[f"{at}.ssm_conv1d.bias"] = r.between(-0.1, 0.1, inner)
        found[f"{at}.ssm_x.weight"] = r.matrix(rank + 2 * state, inner)
        found[f"{at}.ssm_dt.weight"] = r.matrix(inner, rank)
        found[f"{at}.ssm_dt.bias"] = r.between(-2, 0, inner)
        found |= {f"{at}.ssm_{part}_norm.weight": r.norm(state) for part in "bc"}
        found[f"{at}.ssm_dt_norm.weight"] = r.norm(rank)
        found[f"{at}.ssm_a"] = r.between(-1, -0.1, inner, state)
        found[f"{at}.ssm_d"] = r.between(0.5, 1.5, inner)
        found[f"{at}.ssm_out.weight"] = r.matrix(WIDTH, inner)
        return found

    sizes = {**_heads_of(_SHARE), **recurrent(kernel, inner, state, rank, 0)}
    return {"attention.head_count_kv": [*_KV], **sizes}, _layers(layer)


def _pure_mamba2(r: _Random) -> tuple[Metadata, Weights]:
    return dict(_MAMBA2), _layers(lambda at, _: _norms(r, at, "attn_norm") | _mamba2(r, at))


def _mamba2(r: _Random, at: str) -> Weights:
    convolved = _INNER + 2 * _GROUPS * _STATE
    return {
        f"{at}.ssm_in.weight": r.matrix(_INNER + convolved + _STATE_HEADS, WIDTH),
        f"{at}.ssm_conv1d.weight": r.matrix(convolved, _KERNEL, gain=2.0),
        f"{at}.ssm_conv1d.bias": r.between(-0.1, 0.1, convolved),  # without it the graph reads a null pointer
        f"{at}.ssm_dt.bias": r.between(-2, 0, _STATE_HEADS),
        f"{at}.ssm_a": r.between(-1, -0.1, _STATE_HEADS, 1),
        f"{at}.ssm_d": r.between(0.5, 1.5, _STATE_HEADS, 1),
        f"{at}.ssm_norm.weight": r.norm(_GROUPS, _INNER // _GROUPS),
        f"{at}.ssm_out.weight": r.matrix(WIDTH, _INNER),
    }


def _heads_of(width: int) -> Metadata:
    return dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), width)


def recurrent(kernel: int, inner: int, state: int, heads: int, groups: int) -> Metadata:
    return {
        "ssm.conv_kernel": kernel, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }  # fmt: skip


_MAMBA2: Final[Mapping[str, Any]] = recurrent(_KERNEL, _INNER, _STATE, _STATE_HEADS, _GROUPS)
_DELTA: Final[Mapping[str, Any]] = {
    "full_attention_interval": 2,
    **recurrent(_DELTA_KERNEL, _DELTA_STATE * _DELTA_HEADS, _DELTA_STATE, _DELTA_HEADS, 1),
}
_MAKERS: Final[Mapping[str, Callable[[_Random], tuple[Metadata, Weights]]]] = MappingProxyType(
    {
        "llama": _llama, "qwen3": lambda r: ({}, _dense(r, norms=True)),
        "gemma3": _gemma3, "qwen3moe": _qwen3moe, "lfm2": _lfm2, "qwen35": _qwen35,
        "nemotron_h": _nemotron_h, "qwen3next": _qwen3next, "granitehybrid": _granitehybrid, "jamba": _jamba,
        "mamba2": _pure_mamba2, "llada": _llama, "qwen2vl": _qwen2vl, "granite": lambda r: (dict(_SCALES), _dense(r)),
        "glm4": _glm4,
        "smollm3": _llama,
    }
)  # fmt: skip
TREES: Final = ("llama", "qwen3", "gemma3", "qwen3moe")  # kinds whose memory is attention alone: trees of any shape
CHAINS: Final = ("lfm2", "qwen35", "nemotron_h")
"""Hybrid kinds: short convolutions, gated delta nets, Mamba-2; chains only."""
PLAIN: Final = ("qwen3next", "granitehybrid", "jamba", "mamba2")
"""Kinds that cannot take back a token: hybrid ones, and one without attention."""
KINDS: Final = (*TREES, *CHAINS, *PLAIN)
SEES: Final = "qwen2vl"  # a kind whose images take fewer positions than tokens
MORE: Final = (SEES, "granite", "glm4", "smollm3")  # architectures with a memory like that of TREES
DIFFUSES: Final = "llada"  # a kind that does not write token by token and has no memory at all


def add_all(writer: gguf.GGUFWriter, before: str, values: Mapping[str, Any]) -> None:
    """Adds values by their types, to keys that begin alike."""
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in values.items():
        adders.get(type(value), writer.add_array)(before + key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_kind(
    path: Path,
    kind: str,
    *,
    seed: int = 1,
    blur: float = 0.0,
    q8_0: bool = False,
    head: int = _HEAD,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Writes a model of 100 to 300 kB with a vocabulary of bytes and a few words: one of ``KINDS``, ``MORE`` or
    ``DIFFUSES``. ``blur`` mixes other weights in: a draft model that often agrees with the unblurred one; ``q8_0``
    stores matrices as Q8_0, else everything is F32; ``more`` is metadata without the architecture's name before it."""
    random = _Random(seed, blur, head)
    metadata, weights = _MAKERS[kind](random)
    weights["token_embd.weight"] = random.matrix(len(TOKENS), WIDTH, gain=WIDTH**0.5)
    weights["token_embd_norm.weight" if kind == "lfm2" else "output_norm.weight"] = random.norm(WIDTH)
    weights["output.weight"] = random.matrix(len(TOKENS), WIDTH, gain=2.0)
    writer = gguf.GGUFWriter(path, kind)
    add_all(writer, f"{kind}.", {**_COMMON, **_heads_of(head), **metadata, **more})
    writer.add_name(f"Tiny {kind}")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([-float(token) for token in range(len(TOKENS))])
    writer.add_token_types(_TYPES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    for name, array in weights.items():
        if q8_0 and array.ndim > 1 and array.shape[-1] % 32 == 0 and "ssm_norm" not in name and "gate_inp" not in name:
            packed = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, array)
    finish(writer)
    return path


_COMMON: Final[Mapping[str, Any]] = {
    "context_length": 2048, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": _FF,
    "attention.head_count": _HEADS, "attention.head_count_kv": _HEADS_KV, "attention.key_length": _HEAD,
    "attention.value_length": _HEAD, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4,
    "rope.dimension_count": _HEAD, "vocab_size": len(TOKENS),
}  # fmt: skip
