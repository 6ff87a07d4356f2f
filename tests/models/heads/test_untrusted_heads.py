"""Files of heads, of every format that is read: whatever stands in them, there is an answer or a refusal in words."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.mutants import lay_out, mutant, taken_apart

from slipstream.models.errors import ModelFileError, SlipstreamError
from slipstream.models.gguf.parse import DamagedError
from slipstream.models.gguf.probe import SHIPPED
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.check import METHODS, attention_rows, check_heads, expected_abilities, unfit
from slipstream.models.heads.file import read_heads
from slipstream.models.heads.published import read_safetensors

TARGET = read_header(SHIPPED / "slipstream-mini-q8_0.gguf")
_SIZES = st.one_of(st.integers(0, 8), st.sampled_from([-1, 2**31, 2**63, 2**64, 10**30, True, 1.0, "1", None]))
_ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "f32", 3, None]),
        "shape": st.one_of(st.lists(_SIZES, max_size=5), st.none()),
        "data_offsets": st.one_of(st.lists(_SIZES, max_size=3), st.none()),
    },
)


def packed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize("name", ["medusa", "kangaroo", "space", "eagle3-q8_0"])
def test_wrong_files_of_heads_are_read_or_refused(name: str, tmp_path: Path) -> None:
    good, path, outcomes = (SHIPPED / f"slipstream-mini-{name}.gguf").read_bytes(), tmp_path / "heads.gguf", set()
    for seed in range(60):
        path.write_bytes(mutant(good, seed))
        try:
            if name.startswith("eagle3"):
                outcomes.add(bool(unfit(read_header(path), expected_abilities(TARGET))))
            else:
                heads = read_heads(path, TARGET)
                assert all(np.isfinite(values).all() for values in heads.tensors.values())
                outcomes.add(False)
        except SlipstreamError as error:
            assert error.title.isprintable() and error.hint
            outcomes.add(True)
    assert outcomes == {False, True}


@given(st.dictionaries(st.text(max_size=5), st.one_of(_ENTRY, st.none()), max_size=3), st.binary(max_size=64))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_safetensors_header(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    look(tmp_path, packed(header, data))


@given(st.binary(max_size=200), st.one_of(st.none(), st.integers(0, 2**64 - 1)))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_for_safetensors(tmp_path: Path, content: bytes, length: int | None) -> None:
    look(tmp_path, content if length is None else struct.pack("<Q", length) + content)


def look(folder: Path, content: bytes) -> None:
    path = folder / "heads.safetensors"
    path.write_bytes(content)
    try:
        found = read_safetensors(path)
    except ModelFileError as error:
        assert error.title.isprintable() and error.hint
    else:
        assert sum(values.nbytes for values in found.values()) <= 2 * len(content)


def test_a_good_safetensors_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(packed({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)))
    assert read_safetensors(tmp_path / "good")["a"].shape == (2,)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ModelFileError, match="is a folder, a device or a pipe"):
            read_safetensors(path)
    with pytest.raises(ModelFileError, match="no such file"):
        read_safetensors(tmp_path / "missing")


@pytest.mark.slow
@given(
    st.sampled_from(METHODS),
    st.dictionaries(
        st.sampled_from(
            [
                *("head.0.0.weight", "head.0.0.bias", "output.weight", "output.ids", "head.0.output.weight", "masks"),
                *("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "x"),
            ]
        ),
        st.lists(st.integers(0, 4), max_size=4).map(tuple),
    ),
    st.one_of(st.none(), st.integers(-1, 600), st.booleans(), st.text(max_size=3)),
)
@settings(max_examples=200, deadline=None)
def test_any_shapes_of_heads(method: Any, shapes: dict[str, tuple[int, ...]], exit_layer: Any) -> None:
    try:
        check_heads(method, shapes, {"exit_layer": exit_layer}, TARGET)
    except DamagedError as error:
        assert str(error).isprintable()
    else:
        pytest.fail("none of these is whole and 256 wide")


def test_a_safetensors_file_that_shrinks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heads").write_bytes(packed({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)))
    size = (tmp_path / "heads").stat()
    monkeypatch.setattr(os, "fstat", lambda _: os.stat_result((*size[:6], size.st_size + 4, *size[7:])))
    with pytest.raises(ModelFileError, match="became shorter"):
        read_safetensors(tmp_path / "heads")


@pytest.mark.parametrize(
    ("method", "name", "shape", "many"), [("medusa", "head.{}.0.weight", (4, 4), 65), ("space", "masks", (65, 256), 1)]
)
def test_there_are_not_too_many_heads(method: Any, name: str, shape: tuple[int, ...], many: int) -> None:
    with pytest.raises(DamagedError, match=r"65 masks|more than 64"):
        check_heads(method, {name.format(n): shape for n in range(many)}, {})


def test_heads_stored_in_numbers_that_are_not_read_are_refused(tmp_path: Path) -> None:
    model = taken_apart((SHIPPED / "slipstream-mini-space.gguf").read_bytes())
    model.tensors = [(name, shape, 28, offset) for name, shape, _, offset in model.tensors]
    lay_out(model)
    (tmp_path / "heads.gguf").write_bytes(model.bytes())
    with pytest.raises(ModelFileError, match="'masks' is stored as F64"):
        read_heads(tmp_path / "heads.gguf")


def test_an_adapter_has_the_norms_of_its_target_and_a_target_without_heads_no_rows() -> None:
    adapter = read_header(SHIPPED / "slipstream-mini-kangaroo.gguf")
    shapes = {tensor.name: tensor.shape[::-1] for tensor in adapter.tensors}
    check_heads("kangaroo", shapes, {"exit_layer": 1}, TARGET)
    with pytest.raises(DamagedError, match="its heads' norms are other ones"):
        check_heads("kangaroo", {**shapes, "attn_q_norm.weight": (64,)}, {"exit_layer": 1}, TARGET)
    mamba = replace(TARGET, metadata={**TARGET.metadata, "llama.attention.head_count": 0})
    assert attention_rows(mamba, "attention.head_count") is None
    assert attention_rows(TARGET, "attention.head_count")
