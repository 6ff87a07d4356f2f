"""Cuts of models: what they compute, against numpy on the target's own layer inputs, and how they are kept."""

import os
import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from tests.models.adapters import HEAD, VOCABULARY, layer_inputs, logits_of, random_pair
from tests.models.conftest import small_model
from tests.models.requantize import requantize

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_stored, read_tensor
from slipstream.models.heads.file import identity, read_heads, write_heads
from slipstream.models.heads.self_draft import cut, kept_cut, why_not_cut
from slipstream.models.types import Floats

BUNDLED = Path(__file__).parents[3] / "models" / "bundled"
TARGET, ADAPTER = BUNDLED / "slipstream-mini-q8_0.gguf", BUNDLED / "slipstream-mini-kangaroo.gguf"
Numbers = NDArray[Any]


def norm(x: Numbers, weight: Numbers, eps: float) -> Numbers:
    out: Numbers = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * weight
    return out


def turned(x: Numbers, header: Header) -> Numbers:
    """Rotary positions: [length, heads, head] to the same shape."""
    size, base = x.shape[-1], header.metadata.get(f"{header.architecture}.rope.freq_base", 10000.0)
    assert isinstance(base, float)
    per_position = base ** (-np.arange(0, size, 2) / size)
    factors = [tensor for tensor in header.tensors if tensor.name == "rope_freqs.weight"]
    if factors:
        per_position = per_position / read_tensor(header, factors[0])
    angles = (np.arange(len(x))[:, None] * per_position)[:, None, :]
    first, second = (x[..., 0::2], x[..., 1::2])
    if header.architecture == "qwen3":
        first, second = x[..., : size // 2], x[..., size // 2 :]
    real = first * np.cos(angles) - second * np.sin(angles)
    imaginary = first * np.sin(angles) + second * np.cos(angles)
    if header.architecture == "qwen3":
        return np.concatenate((real, imaginary), axis=-1)
    return np.stack((real, imaginary), axis=-1).reshape(x.shape)


def wanted_logits(header: Header, adapter: Mapping[str, Floats], hidden: Floats) -> Numbers:
    """What the adapter's training computes, in float64: h + attention(norm(h)), norm, vocabulary matrix."""
    eps = header.metadata[f"{header.architecture}.attention.layer_norm_rms_epsilon"]
    heads, kv_heads = header.number("attention.head_count"), header.number("attention.head_count_kv")
    assert isinstance(eps, float) and heads and kv_heads
    h = hidden.astype(np.float64)
    y = norm(h, adapter["attn_norm.weight"], eps)
    parts = {}
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        parts[name] = (y @ adapter[f"attn_{name}.weight"].T).reshape(len(h), count, -1)
        if f"attn_{name}_norm.weight" in adapter:
            parts[name] = norm(parts[name], adapter[f"attn_{name}_norm.weight"], eps)
    q, k = turned(parts["q"], header), turned(parts["k"], header)
    k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, parts["v"]))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones((len(h), len(h)), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    found = np.einsum("hij,jhd->ihd", weights, v).reshape(len(h), -1) @ adapter["attn_output.weight"].T
    by_name = {tensor.name: tensor for tensor in header.tensors}
    matrix = read_tensor(header, by_name.get("output.weight") or by_name["token_embd.weight"])
    out: Numbers = norm(h + found, adapter["output_norm.weight"], eps) @ matrix.T
    return out


def off(target: Path, adapter: Path, out: Path, tokens: list[int]) -> float:
    """How far a cut's logits are from what they should be, relative to their size."""
    heads = read_heads(adapter)
    layer = heads.info.settings["exit_layer"]
    assert isinstance(layer, int)
    wanted = wanted_logits(read_header(target), heads.tensors, layer_inputs(target, layer, tokens))
    return float(np.linalg.norm(logits_of(out, tokens) - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize(("exit_layer", "tied", "per_file"), [(1, False, 0), (2, True, 7)])
def test_a_cut_computes_what_the_adapter_was_trained_to_compute(
    tmp_path: Path, architecture: str, exit_layer: int, tied: bool, per_file: int
) -> None:
    pair = random_pair(tmp_path, architecture, exit_layer, tied=tied, per_file=per_file)
    assert len(read_header(pair.target).parts) == (5 if per_file else 1)
    out = tmp_path / "cut.gguf"
    cut(*pair, out)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    assert off(*pair, out, tokens) < 1e-5
    moved = read_heads(pair.adapter)
    write_heads(pair.adapter, moved.info, {**moved.tensors, "attn_v.weight": -moved.tensors["attn_v.weight"]}, "f32")
    assert off(*pair, out, tokens) > 0.01  # so the comparison sees the attention


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_quantized_weights_are_copied_as_they_are(tmp_path: Path, architecture: str) -> None:
    pair = random_pair(tmp_path, architecture, 2, Kind.Q5_1)
    out = tmp_path / "cut.gguf"
    cut(*pair, out)
    target, made = read_header(pair.target), read_header(out)
    theirs = {tensor.name: tensor for tensor in target.tensors}
    shared = [t for t in made.tensors if not t.name.startswith("blk.2.") and t.name != "output_norm.weight"]
    assert {t.name for t in shared} == {n for n in theirs if not n.startswith("blk.2.") and n != "output_norm.weight"}
    for tensor in shared:
        assert tensor.type == theirs[tensor.name].type
        assert np.array_equal(read_stored(made, tensor), read_stored(target, theirs[tensor.name]))
    assert off(*pair, out, list(range(30))) < 0.03  # llama.cpp rounds what it multiplies with quantized weights


def test_the_bundled_adapter_drafts_from_its_target(tmp_path: Path) -> None:
    """As it ships, and in float32, where nothing but the graph can differ."""
    tokens = [(at * 7919 + 4099) % 4096 for at in range(40)]
    cut(TARGET, ADAPTER, tmp_path / "shipped.gguf")
    assert off(TARGET, ADAPTER, tmp_path / "shipped.gguf", tokens) < 0.05
    exact, adapter = tmp_path / "f32.gguf", tmp_path / "adapter.gguf"
    requantize(TARGET, exact, "f32")
    heads = read_heads(ADAPTER)
    write_heads(adapter, heads.info, heads.tensors, "f32")
    cut(exact, adapter, tmp_path / "cut.gguf")
    assert off(exact, adapter, tmp_path / "cut.gguf", tokens) < 1e-5


def test_a_cut_keeps_the_vocabulary_and_says_what_it_is(tmp_path: Path) -> None:
    cut(TARGET, ADAPTER, tmp_path / "cut.gguf")
    target, made = read_header(TARGET), read_header(tmp_path / "cut.gguf")
    for key, value in target.metadata.items():
        if key.startswith("tokenizer."):
            assert made.metadata[key] == value and made.types[key] == target.types[key]
    layers = read_heads(ADAPTER).info.settings["exit_layer"]
    assert isinstance(layers, int) and made.n_layer == layers + 1
    assert made.name == f"{target.name}, first {layers} layers" and identity(made) != identity(target)
    facts = [(header.bos, header.eos, header.add_bos, header.n_ctx_train) for header in (made, target)]
    assert facts[0] == facts[1]


def test_a_cut_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "derived" / "deep"
    path = kept_cut(TARGET, ADAPTER, folder)
    assert [path] == list(folder.iterdir()) and path.name.startswith(identity(read_header(TARGET))[:16])
    before = path.stat()
    assert kept_cut(TARGET, ADAPTER, folder) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("damage", ["empty", "short", "garbage", "name", "weights", "adapter", "zeros"])
def test_a_damaged_cut_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = kept_cut(TARGET, ADAPTER, tmp_path)
    whole = path.read_bytes()
    made = read_header(path)
    where = {"weights": "token_embd.weight", "adapter": f"blk.{made.n_layer - 1 if made.n_layer else 0}.attn_q.weight"}
    where["zeros"] = where["adapter"].replace("attn_q", "ffn_norm")
    broken = bytearray(whole)
    if damage in where:
        tensor = next(tensor for tensor in made.tensors if tensor.name == where[damage])
        broken[made.data_offsets[0] + tensor.offset] ^= 0x40
    elif damage == "name":
        broken[whole.index(b", first ")] ^= 1
    else:
        broken = {"empty": bytearray(), "short": broken[:-40_000], "garbage": bytearray(b"x" * len(whole))}[damage]
    path.write_bytes(broken)
    assert kept_cut(TARGET, ADAPTER, tmp_path) == path
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]


def test_a_new_adapter_replaces_the_cut_of_the_old_one(tmp_path: Path) -> None:
    folder, adapter = tmp_path / "derived", tmp_path / "adapter.gguf"
    old = kept_cut(TARGET, ADAPTER, folder)
    heads = read_heads(ADAPTER)
    write_heads(adapter, replace(heads.info, made=heads.info.made + 1), heads.tensors)
    other = folder / "another-models.gguf"
    other.write_bytes(b"theirs")
    killed, writing = (folder / f"{old.stem}.{pid}.part" for pid in (1, 2))
    killed.write_bytes(b"half"), writing.write_bytes(b"half")
    os.utime(killed, (0, 0))
    new = kept_cut(TARGET, adapter, folder)
    assert new != old and sorted(folder.iterdir()) == sorted([new, other, writing])


def test_copies_in_other_quantizations_have_cuts_of_their_own(tmp_path: Path) -> None:
    requantize(TARGET, tmp_path / "small.gguf", "q4_0")
    folder = tmp_path / "derived"
    one, two = kept_cut(TARGET, ADAPTER, folder), kept_cut(tmp_path / "small.gguf", ADAPTER, folder)
    assert one != two and sorted(folder.iterdir()) == sorted([one, two])
    assert two.stat().st_size < one.stat().st_size


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # of 2 MB that a cut takes
    try:
        with pytest.raises(SlipstreamError, match=r"cannot write .*: file too large. Free some room there") as found:
            kept_cut(TARGET, ADAPTER, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found.value.code == 1 and list(tmp_path.iterdir()) == []


def test_models_that_cannot_be_cut_are_refused_by_what_they_are(tmp_path: Path) -> None:
    def reason(model: Any) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(model.bytes())
        return why_not_cut(read_header(path))

    assert why_not_cut(read_header(TARGET)) == ""
    other = small_model().text("general.architecture", "gemma3")
    assert "llama and qwen3 can be cut, and this one is 'gemma3'; medusa heads serve" in reason(other)
    experts = small_model().number("llama.expert_count", 4).number("llama.expert_used_count", 2)
    assert "a model of experts cannot be cut" in reason(experts)
    layered = small_model().drop("llama.attention.head_count_kv")
    layered.array("llama.attention.head_count_kv", 4, [1, 2])
    assert "its layers differ" in reason(layered)
    assert "it has the tensor 't0.weight', which a cut cannot have" in reason(small_model())
    path = tmp_path / "model.gguf"
    path.write_bytes(other.bytes())
    with pytest.raises(SlipstreamError, match=r"kangaroo cannot serve 'Small': only models of"):
        cut(path, ADAPTER, tmp_path / "cut.gguf")
    assert not (tmp_path / "cut.gguf").exists()


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    pair = random_pair(tmp_path, "llama", 2)
    out = tmp_path / "cut.gguf"
    with pytest.raises(SlipstreamError, match="were trained for"):
        cut(pair.target, ADAPTER, out)
    with pytest.raises(SlipstreamError, match="is no Kangaroo adapter"):
        kept_cut(TARGET, BUNDLED / "slipstream-mini-medusa.gguf", tmp_path / "derived")
    with pytest.raises(ModelFileError, match="no such file"):
        kept_cut(TARGET, tmp_path / "nothing.gguf", tmp_path / "derived")
    heads = read_heads(pair.adapter)
    norms = {name: np.ones(HEAD, np.float32) for name in ("attn_q_norm.weight", "attn_k_norm.weight")}
    write_heads(pair.adapter, heads.info, {**heads.tensors, **norms})
    with pytest.raises(ModelFileError, match="its heads' norms are other ones"):
        cut(pair.target, pair.adapter, out)
    assert not out.exists()
