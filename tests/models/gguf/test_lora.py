"""An adapter is checked against its model before llama.cpp reads it: each misfit is one clear error."""

from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tests.models.lora_file import write_lora
from tests.models.small_llama import write_small

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.lora import read_adapter
from slipstream.models.gguf.parse import F32, STRING, U32
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.placement import Placement
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Floats

PROMPT = [1, 40, 50, 60, 70, 80, 41, 51]


@pytest.fixture
def small(tmp_path: Path) -> Header:
    return read_header(write_small(tmp_path / "small.gguf"))


def refusal(path: Path, model: Header) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_adapter(path, 1.0, model)
    assert caught.value.hint
    return caught.value.title


def logits(model: Header, *loras: tuple[Path, float]) -> Floats:
    adapters = [read_adapter(path, scale, model) for path, scale in loras]
    with (
        closing(LlamaModel(model.path, placement=Placement(0), repack=False, adapters=adapters)) as loaded,
        closing(LlamaTarget(loaded, ContextOptions(n_ctx=64, kv="f32", flash=False, threads=1))) as target,
    ):
        target.prefill(PROMPT[:-1])
        found: Floats = target.evaluate(PROMPT[-1]).logits[0].copy()
        return found


def merged(model: Header, path: Path, lora: Path, scale: float) -> Header:
    """The model with an adapter added into its weights, by numpy."""
    from slipstream.models.gguf.tensors import NewTensor, write_gguf

    header = read_header(lora)
    parts = {tensor.name: read_tensor(header, tensor) for tensor in header.tensors}
    tensors = []
    for tensor in model.tensors:
        weight = read_tensor(model, tensor)
        if f"{tensor.name}.lora_a" in parts:
            a, b = parts[f"{tensor.name}.lora_a"], parts[f"{tensor.name}.lora_b"]
            flipped = tensor.name == "token_embd.weight"
            rank = b.shape[1]
            weight = weight + scale * 8.0 / rank * ((b @ a.T).T if flipped else b @ a)
        tensors.append(NewTensor(tensor.name, weight.shape, gguf.GGMLQuantizationType.F32, lambda w=weight: w))  # type: ignore[misc]
    kept = {k: (model.types[k], v) for k, v in model.metadata.items() if k != "general.architecture"}
    write_gguf(path, model.architecture, kept, tensors)
    return read_header(path)


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0])
def test_it_computes_what_the_merged_weights_compute(small: Header, tmp_path: Path, scale: float) -> None:
    weights = ("attn_q", "attn_v", "ffn_down", "output.weight", "token_embd.weight")
    lora = write_lora(tmp_path / "l.gguf", small, weights=weights, kind=gguf.GGMLQuantizationType.F32)
    own, added = logits(small), logits(merged(small, tmp_path / "merged.gguf", lora, scale))
    assert np.abs(own - added).max() > 0.1 and np.allclose(logits(small, (lora, scale)), added, atol=2e-3)


def test_two_adapters_add_up_and_a_scale_of_zero_changes_nothing(small: Header, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.F32
    one = write_lora(tmp_path / "1.gguf", small, kind=kind)
    two = write_lora(tmp_path / "2.gguf", small, kind=kind, seed=2)
    both = merged(merged(small, tmp_path / "m1.gguf", one, 0.5), tmp_path / "m2.gguf", two, 1.0)
    assert np.allclose(logits(small, (one, 0.5), (two, 1.0)), logits(both), atol=2e-3)
    assert np.array_equal(logits(small, (one, 0.0)), logits(small))


def test_its_key_depends_on_every_weight_and_on_the_scale(small: Header, tmp_path: Path) -> None:
    one = read_adapter(write_lora(tmp_path / "1.gguf", small), 1.0, small)
    two = read_adapter(write_lora(tmp_path / "2.gguf", small, seed=2), 1.0, small)
    assert one.header.fingerprint == two.header.fingerprint  # headers alike: two trainings of one kind
    keys = {one.key, two.key, read_adapter(one.header.path, 0.5, small).key}
    assert len(keys) == 3
    assert read_adapter(one.header.path, 1.0, small).key == one.key


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"general__type": (STRING, "model")}, "is no LoRA adapter"),
        ({"adapter__type": (STRING, "control-vector")}, "is no LoRA adapter"),
        ({"adapter__type": (U32, 5)}, "is no LoRA adapter"),
        ({"adapter__lora__alpha": (STRING, "8")}, "is not a number"),
        ({"adapter__lora__alpha": (F32, float("nan"))}, "is not a number"),
        ({"adapter__alora__invocation_tokens": (-1 - U32, [5, 6])}, "activated LoRA"),
        ({"architecture": "qwen2"}, "is an adapter for"),
        ({"weights": ()}, "changes no weight"),
        ({"kind": gguf.GGMLQuantizationType.Q4_0, "rank": 32}, "stored as Q4_0"),
        ({"broken": float("nan")}, "is damaged: not all weights"),
        ({"broken": float("inf")}, "is damaged: not all weights"),
    ],
)
def test_what_is_no_adapter_for_it_is_refused(small: Header, tmp_path: Path, about: dict[str, Any], words: str) -> None:
    assert words in refusal(write_lora(tmp_path / "l.gguf", small, **about), small)


def test_an_adapter_of_another_shape_or_rank_and_a_damaged_file_are_refused(small: Header, tmp_path: Path) -> None:
    from dataclasses import replace

    wider = replace(small, tensors=tuple(replace(t, shape=(t.shape[0] * 2, *t.shape[1:])) for t in small.tensors))
    assert "another shape" in refusal(write_lora(tmp_path / "l.gguf", wider), small)
    deeper = replace(small, tensors=tuple(replace(t, name=t.name.replace("blk.2", "blk.9")) for t in small.tensors))
    assert "another shape" in refusal(write_lora(tmp_path / "d.gguf", deeper), small)
    assert "no such file" in refusal(tmp_path / "none.gguf", small)
    whole = write_lora(tmp_path / "l.gguf", small).read_bytes()
    for length in (0, 20, 200, len(whole) - 200):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        assert refusal(tmp_path / "cut.gguf", small)
    assert "is no LoRA adapter" in refusal(small.path, small)
    lora = write_lora(tmp_path / "l.gguf", small)
    raw = lora.read_bytes()
    half = raw.replace(b"blk.1.attn_q.weight.lora_b", b"blk.1.attn_q.weight.lora_c")
    (tmp_path / "half.gguf").write_bytes(half)
    assert "not one of a pair" in refusal(tmp_path / "half.gguf", small)


def test_the_embedding_of_a_model_without_an_output_of_its_own_stays(tmp_path: Path) -> None:
    tied = read_header(write_small(tmp_path / "tied.gguf", tied=True))
    assert "output matrix" in refusal(write_lora(tmp_path / "l.gguf", tied, weights=["token_embd.weight"]), tied)


def test_the_bits_are_promised_for_whole_numbers_and_masks_where_the_embedding_stays(
    small: Header, tmp_path: Path
) -> None:
    for kind, same in ((gguf.GGMLQuantizationType.Q8_0, True), (gguf.GGMLQuantizationType.F16, False)):
        assert read_adapter(write_lora(tmp_path / "l.gguf", small, rank=32, kind=kind), 1.0, small).same_text == same
    for weights, offered in ((("attn_q",), True), (("token_embd.weight",), False)):
        adapter = read_adapter(write_lora(tmp_path / "l.gguf", small, weights=weights), 1.0, small)
        with (
            closing(LlamaModel(small.path, placement=Placement(0), adapters=[adapter])) as model,
            closing(LlamaTarget(model, ContextOptions(n_ctx=64))) as target,
        ):
            assert target.abilities.masks == offered
