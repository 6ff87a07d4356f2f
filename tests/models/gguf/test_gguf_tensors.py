"""Weights are read as they stand, from files that may be split, shrink, go away or be of a type nobody knows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.models.conftest import RawModel, small_model
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


Save = Callable[..., Path]
FIRST, SECOND = "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"


def split(first: RawModel, second: RawModel) -> None:
    second.pairs.clear()
    second.tensors = [(f"more.{name}", *rest) for name, *rest in second.tensors]  # type: ignore[misc]
    for number, part in enumerate((first, second)):
        part.number("split.no", number, 2).number("split.count", 2, 2)
        part.number("split.tensors.count", len(first.tensors) + len(second.tensors), 5)


def refusal(path: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    return caught.value


def test_a_split_model_is_read_whole(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    path, second = save(model, FIRST), save(other_model, SECOND)
    header = read_header(path)
    assert header.parts == (path, second)
    assert [tensor.part for tensor in header.tensors] == [0, 0, 0, 1, 1, 1]
    assert header.weight_bytes == 2 * 412


def test_only_the_first_file_can_be_named(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    save(model, FIRST)
    other_model.text("general.architecture", "llama")
    error = refusal(save(other_model, SECOND))
    assert "is part 2 of 2 of a split model" in error.title and FIRST in error.hint


def test_a_part_that_lacks_is_renamed_or_cut_is_named(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    assert f"{SECOND} is missing" in refusal(save(model, FIRST)).title
    split(model, other_model)
    assert "its name does not say so" in refusal(save(model, "big.gguf")).title
    split(model, other_model)
    path = save(model, FIRST)
    save(other_model.bytes()[:-9], SECOND)
    assert f"its part {SECOND} is cut short" in refusal(path).title


def test_parts_of_two_models(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    path = save(model, FIRST)
    save(other_model.number("split.no", 0, 2), SECOND)
    assert f"its part {SECOND} does not belong to it" in refusal(path).title
    save(other_model.number("split.no", 1, 2).weights((4,)), SECOND)
    assert "do not add up" in refusal(path).title
