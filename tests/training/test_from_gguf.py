import ctypes
from dataclasses import replace
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests.models.kinds import finish
from tests.training.gguf_file import BUNDLED, dequantized, random_decoder, write_model
from tests.training.llama_file import LlamaFile

from slipstream.drafters.training.decoder import DecoderShape
from slipstream.drafters.training.from_gguf import load_gguf
from slipstream.models.errors import SlipstreamError

LLAMA = DecoderShape(width=64, layers=2, heads=4, kv_heads=2, head_size=32, ffn=96, vocabulary=300, context=512)
QWEN3 = replace(LLAMA, rope="halves", qk_norm=True, rope_base=1e6, eps=1e-6)
SHAPES = {
    "llama, tied": LLAMA,
    "llama, untied": replace(LLAMA, tied=False),
    "llama, a head of keys for each query head": replace(LLAMA, kv_heads=4, head_size=16),
    "llama 3": replace(LLAMA, rope_factors=True, rope_base=500_000.0),
    "qwen3, tied": QWEN3,
    "qwen3, untied": replace(QWEN3, tied=False, heads=2, kv_heads=1),
}
IDS = np.random.default_rng(1).integers(0, 300, 200).tolist()


def _both(path: Path, ids: list[int] = IDS) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the loaded decoder and of llama.cpp."""
    model = load_gguf(path)
    with LlamaFile(path) as file, torch.no_grad():
        return model(torch.tensor([ids]))[0].numpy(), file.logits(ids)


@pytest.mark.parametrize("name", SHAPES)
def test_the_decoder_computes_what_llama_cpp_computes(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    write_model(tmp_path / "m.gguf", random_decoder(shape))
    found = load_gguf(tmp_path / "m.gguf").shape
    assert replace(found, eps=shape.eps) == shape
    assert found.eps == pytest.approx(shape.eps)  # stored as float32
    ours, theirs = _both(tmp_path / "m.gguf")
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
    ],
)
def test_linear_scaling_is_llama_cpps(keys: dict[str, float | str], tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", random_decoder(LLAMA), keys=dict(keys))
    scaled, plain = load_gguf(tmp_path / "m.gguf"), random_decoder(LLAMA)
    ours, theirs = _both(tmp_path / "m.gguf")
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    with torch.no_grad():
        differs = float((plain(torch.tensor([IDS]))[0] - torch.from_numpy(theirs)).abs().max()) > 0.1
    assert differs == (scaled.shape.rope_scaling == 4.0) == ("none" not in keys.values())


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.F16, Kind.BF16])
def test_stored_matrices_come_back_dequantized(kind: Kind, tmp_path: Path) -> None:
    source = random_decoder(SHAPES["qwen3, untied"])
    write_model(tmp_path / "m.gguf", source, kind)
    loaded = load_gguf(tmp_path / "m.gguf")
    for name, values in source.state_dict().items():
        expected = dequantized(values, kind) if values.ndim == 2 else values.numpy()
        np.testing.assert_array_equal(loaded.state_dict()[name].numpy(), expected, name)
    ours, theirs = _both(tmp_path / "m.gguf")
    assert np.abs(ours - theirs).mean() < 0.05 * theirs.std()  # llama.cpp rounds the activations too


def test_k_quants_come_back_dequantized(tmp_path: Path) -> None:
    shape = replace(LLAMA, width=256, ffn=256, heads=4, head_size=64)
    write_model(tmp_path / "f32.gguf", random_decoder(shape))
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.nthread, settings.ftype = 1, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M
    paths = [str(tmp_path / name).encode() for name in ("f32.gguf", "q4.gguf")]
    assert llama_cpp.llama_model_quantize(*paths, ctypes.byref(settings)) == 0
    ours, theirs = _both(tmp_path / "q4.gguf")
    exact, _ = _both(tmp_path / "f32.gguf")
    assert np.abs(ours - theirs).mean() < 0.05 * theirs.std()
    assert np.abs(ours - theirs).mean() < 0.5 * np.abs(exact - theirs).mean()


def test_a_split_model_is_read_from_all_its_files(tmp_path: Path) -> None:
    source = random_decoder(LLAMA)
    write_model(tmp_path / "m.gguf", source, tensors_per_file=7)
    first, *others = sorted(tmp_path.glob("m-*.gguf"))
    assert others
    for name, values in load_gguf(first).state_dict().items():
        torch.testing.assert_close(values, source.state_dict()[name], rtol=0, atol=0)


def test_gradients_reach_the_input_and_the_weights_are_frozen(tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", random_decoder(SHAPES["llama 3"]))
    model = load_gguf(tmp_path / "m.gguf", torch.bfloat16)
    exact = load_gguf(tmp_path / "m.gguf")
    assert model.rope_freqs.weight.dtype == torch.float32
    row = torch.zeros(1, 5, LLAMA.width, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    model.logits(model.run(row + model.token_embd.weight[:5], torch.arange(5), mask))[0, 2].sum().backward()
    assert row.grad is not None
    assert [bool(part.any()) for part in row.grad[0]] == [True, True, True, False, False]
    assert not any(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        ids = torch.tensor([IDS])
        rounded, wanted = model(ids).float(), exact(ids)
    assert 0 < float((rounded - wanted).abs().mean()) < 0.05 * float(wanted.std())


@pytest.mark.skipif(not BUNDLED.exists(), reason="the bundled model is not part of this checkout")
def test_the_bundled_model_agrees_with_llama_cpp() -> None:
    text = (
        "<|im_start|>user\nTell me about the sea.<|im_end|>\n<|im_start|>assistant\nThe sea is a large body of water."
    )
    model = load_gguf(BUNDLED)
    with LlamaFile(BUNDLED) as file, torch.no_grad():
        ids = file.ids(text, special=True)
        same = model(torch.tensor([ids]))[0].argmax(-1).numpy() == file.logits(ids).argmax(-1)
    assert same.mean() > 0.9


REFUSED_KEYS: list[tuple[DecoderShape, dict[str, int | float | bool | str], str]] = [
    (LLAMA, {"expert_count": 8, "expert_used_count": 2}, "llama.expert_count to '8'"),
    (LLAMA, {"attention.sliding_window": 128}, "llama.attention.sliding_window to '128'"),
    (LLAMA, {"attention.causal": False}, "llama.attention.causal to 'False'"),
    (QWEN3, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "qwen3.rope.scaling.type to 'yarn'"),
    (LLAMA, {"rope.scaling.type": "longrope"}, "llama.rope.scaling.type to 'longrope'"),
    (LLAMA, {"rope.dimension_count": 16}, "llama.rope.dimension_count to another size"),
    (LLAMA, {"rope.freq_base": "large"}, "'large' as llama.rope.freq_base"),
    (LLAMA, {"feed_forward_length": 128}, "blk.0.ffn_gate.weight in the shape (96, 64) in place of (128, 64)"),
    (LLAMA, {"block_count": 3}, "lacks the tensor blk.2.attn_q.weight"),
    (LLAMA, {"block_count": 1}, "has the tensor 'blk.1.attn_q.weight'"),
]


@pytest.mark.parametrize(("shape", "keys", "message"), REFUSED_KEYS)
def test_what_the_decoder_does_not_compute_is_refused_by_name(
    shape: DecoderShape, keys: dict[str, int | float | bool | str], message: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "m.gguf", random_decoder(shape), keys=keys)
    with pytest.raises(SlipstreamError) as refusal:
        load_gguf(tmp_path / "m.gguf")
    assert message in refusal.value.title
    assert "Train medusa" in refusal.value.hint


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "blk.1.attn_output.bias", "blk.0.attn_sinks.weight", "rope_freqs.weight"]
)
def test_a_tensor_more_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", random_decoder(QWEN3), tensors={name: torch.ones(16)})
    with pytest.raises(SlipstreamError, match=f"has the tensor '{name}'"):
        load_gguf(tmp_path / "m.gguf")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    finish(writer)
    with pytest.raises(SlipstreamError) as refusal:
        load_gguf(tmp_path / "m.gguf")
    assert "'gemma3': heads that compute as their target does are trained for llama and qwen3" in refusal.value.title
    assert "Train medusa" in refusal.value.hint


def test_numbers_that_cannot_be_dequantized_are_refused(tmp_path: Path) -> None:
    whole = torch.ones(LLAMA.vocabulary, LLAMA.width, dtype=torch.int32)
    write_model(tmp_path / "m.gguf", random_decoder(LLAMA), tensors={"token_embd.weight": whole})
    with pytest.raises(SlipstreamError, match=r"holds no weights but I32"):
        load_gguf(tmp_path / "m.gguf")
