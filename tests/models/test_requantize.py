"""Copies of a model in other quantizations: llama.cpp loads them, and they know where they come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.models.requantize import requantize

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.heads.file import DERIVED_FROM, identity
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import Floats

if TYPE_CHECKING:
    from tests.models.conftest import RawModel

Save = Callable[..., Path]
BUNDLED = Path(__file__).parents[2] / "models" / "bundled"
MINI = BUNDLED / "slipstream-mini-draft-q8_0.gguf"  # the smaller of the two
OPTIONS = ContextOptions(n_ctx=256, kv="f32", flash=False, same_text=False, max_leaves=1, threads=1)
PROMPT = list(range(300, 340))


def logits(path: Path) -> Floats:
    model = LlamaModel(path)
    target = LlamaTarget(model, OPTIONS)
    target.prefill(PROMPT)
    rows: Floats = target.evaluate(400).logits[0].copy()
    target.close()
    model.close()
    return rows


@pytest.fixture(scope="module")
def mini_logits() -> Floats:
    return logits(MINI)


@pytest.mark.parametrize(
    ("kind", "file_type", "error"), [("f32", 0, 0.02), ("bf16", 32, 0.02), ("q8_0", 7, 1e-6), ("q4_0", 2, 0.3)]
)
def test_llama_cpp_loads_each_kind_and_computes_nearly_the_same(
    tmp_path: Path, mini_logits: Floats, kind: Any, file_type: int, error: float
) -> None:
    path = tmp_path / f"mini-{kind}.gguf"
    requantize(MINI, path, kind)
    source, copy = read_header(MINI), read_header(path)
    assert {t.type_name for t in copy.tensors if len(t.shape) > 1} == {kind.upper()}
    assert {t.type_name for t in copy.tensors if len(t.shape) == 1} == {"F32"}
    assert [(t.name, t.shape) for t in copy.tensors] == [(t.name, t.shape) for t in source.tensors]
    assert copy.metadata["general.file_type"] == file_type
    assert {**source.metadata, "general.file_type": file_type, DERIVED_FROM: identity(source)} == copy.metadata
    assert {**source.types, DERIVED_FROM: 8} == copy.types
    moved = float(np.linalg.norm(logits(path) - mini_logits) / np.linalg.norm(mini_logits))
    assert moved < error
    assert list(tmp_path.iterdir()) == [path]


def test_a_copy_and_its_copies_have_the_identity_of_their_source(tmp_path: Path) -> None:
    requantize(MINI, tmp_path / "a.gguf", "q4_0")
    requantize(tmp_path / "a.gguf", tmp_path / "b.gguf", "f32")
    wanted = identity(read_header(MINI))
    assert identity(read_header(tmp_path / "a.gguf")) == identity(read_header(tmp_path / "b.gguf")) == wanted
    assert identity(read_header(BUNDLED / "slipstream-mini-q8_0.gguf")) != wanted


def test_what_is_no_matrix_of_whole_blocks_stays_f32(model: RawModel, save: Save, tmp_path: Path) -> None:
    model.weights((64, 2), (64, 3)).number("general.alignment", 64).array("empty", 4, [])
    model.tensors = [(*entry[:3], 0) for entry in model.tensors]
    names = ["plain.weight", "vector.weight", "odd.weight", "blk.0.ffn_gate_inp.weight", "grid.weight"]
    model.alignment, model.data, offset = 64, b"", 0
    for place, (_, shape, kind, _) in enumerate(model.tensors):
        model.tensors[place] = (names[place], shape, kind, offset)
        offset += -(-4 * int(np.prod(shape)) // 64) * 64
    rng = np.random.default_rng(2)
    model.data = rng.normal(size=offset // 4).astype("<f4").tobytes()
    source = save(model)
    requantize(source, tmp_path / "copy.gguf", "q8_0")
    copy = read_header(tmp_path / "copy.gguf")
    assert [t.type_name for t in copy.tensors] == ["F32"] * 4 + ["Q8_0"]
    assert "general.alignment" not in copy.metadata and "empty" not in copy.metadata
    for old, new in zip(read_header(source).tensors, copy.tensors, strict=True):
        difference = np.abs(read_tensor(read_header(source), old) - read_tensor(copy, new)).max()
        assert difference == 0 if new.type_name == "F32" else 0 < difference < 0.02


def test_a_split_model_becomes_one_file(model: RawModel, other_model: RawModel, save: Save, tmp_path: Path) -> None:
    parts = []
    for number, part in enumerate((model, other_model)):
        part.data = np.full(len(part.data) // 4, number + 0.5, "<f4").tobytes()
        part.tensors = [(f"{number}.{entry[0]}", *entry[1:]) for entry in part.tensors]
        part.number("split.no", number, 2).number("split.count", 2, 2).number("split.tensors.count", 6, 5)
        parts.append(save(part, f"whole-{number + 1:05}-of-00002.gguf"))
    requantize(parts[0], tmp_path / "one.gguf", "f32")
    split, one = read_header(parts[0]), read_header(tmp_path / "one.gguf")
    assert len(one.parts) == 1 and len(one.tensors) == 6 and identity(one) == identity(split)
    assert not any(key.startswith("split.") for key in one.metadata)
    for old, new in zip(split.tensors, one.tensors, strict=True):
        assert np.array_equal(read_tensor(split, old), read_tensor(one, new))


def test_a_type_that_cannot_be_unpacked_is_named(model: RawModel, save: Save, tmp_path: Path) -> None:
    model.tensors, model.data = [("q.weight", (256, 1), 42, 0)], bytes(72)  # the gguf package does not know it
    with pytest.raises(ModelFileError, match=r"'q\.weight' has the type Q2_0"):
        requantize(save(model), tmp_path / "copy.gguf", "f32")
    assert list(tmp_path.glob("copy*")) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match=r"cannot write .*nowhere"):
        requantize(MINI, tmp_path / "nowhere" / "copy.gguf", "f32")


def test_a_file_that_shrinks_meanwhile_is_an_error(model: RawModel, save: Save) -> None:
    header: Header = read_header(save(model))
    header.path.write_bytes(header.path.read_bytes()[:-20])
    with pytest.raises(ModelFileError, match="became shorter"):
        read_tensor(header, header.tensors[-1])
