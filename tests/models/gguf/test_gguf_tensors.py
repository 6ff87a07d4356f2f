"""Weights are read as they stand, from files that may be split, shrink, go away or be of a type nobody knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.models.conftest import small_model
from tests.models.hub_models import split_gguf
from tests.models.kinds import write_kind

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_stored, read_tensor, samples

Q2_0 = 42  # the gguf package does not know it


def test_a_split_model_is_sampled_in_all_its_files(tmp_path: Path) -> None:
    for name, raw in split_gguf("big", 2).items():
        (tmp_path / name).write_bytes(raw)
    header = read_header(tmp_path / "big-00001-of-00002.gguf")
    before = list(samples(header))
    assert len(before) == 3 * min(64, len(header.tensors))
    changed = next(tensor for tensor in header.tensors if tensor.part == 1)
    second = bytearray(header.parts[1].read_bytes())
    second[header.data_offsets[1] + changed.offset] ^= 0xFF
    header.parts[1].write_bytes(second)
    assert list(samples(header)) != before
    header.parts[1].unlink()
    with pytest.raises(ModelFileError, match=r"big-00002-of-00002\.gguf.* cannot be read: no such file") as error:
        list(samples(header))
    assert error.value.hint


def test_a_model_of_many_tensors_is_sampled_from_the_first_to_the_last(tmp_path: Path) -> None:
    header = read_header(write_kind(tmp_path / "model.gguf", "llama"))
    many = replace(header, tensors=header.tensors * (200 // len(header.tensors) + 1))
    ends = list(samples(replace(header, tensors=(header.tensors[0], header.tensors[-1]))))
    found = list(samples(many))
    assert len(found) == 3 * 64 and found[:3] == ends[:3] and found[-3:] == ends[3:]


def test_what_is_packed_is_near_what_it_was_packed_from(tmp_path: Path) -> None:
    plain, packed = (read_header(write_kind(tmp_path / f"{q8}.gguf", "llama", q8_0=q8)) for q8 in (False, True))
    unpacked = 0
    for one, other in zip(plain.tensors, packed.tensors, strict=True):
        right, found = read_tensor(plain, one), read_tensor(packed, other)
        assert found.shape == right.shape == one.shape[::-1]
        assert np.abs(found - right).max() <= np.abs(right).max() / 100
        unpacked += other.type != one.type
    assert unpacked


def test_what_cannot_be_read_or_unpacked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(small_model().bytes())
    header = read_header(path)
    tensor = header.tensors[-1]
    with pytest.raises(ModelFileError, match="cannot be unpacked here") as error:
        read_tensor(header, replace(tensor, type=Q2_0))
    assert "Choose another quantization" in error.value.hint
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ModelFileError, match="became shorter while it was read"):
        read_stored(header, tensor)
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot be read: no such file"):
        read_stored(header, tensor)
