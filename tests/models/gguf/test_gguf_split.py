from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.reader import read_header

if TYPE_CHECKING:
    from tests.models.conftest import RawModel

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


def test_a_missing_part_is_named(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    assert f"{SECOND} is missing" in refusal(save(model, FIRST)).title


def test_a_renamed_part(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    assert "its name does not say so" in refusal(save(model, "big.gguf")).title


def test_parts_of_two_models(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    path = save(model, FIRST)
    save(other_model.number("split.no", 0, 2), SECOND)
    assert f"its part {SECOND} does not belong to it" in refusal(path).title
    save(other_model.number("split.no", 1, 2).weights((4,)), SECOND)
    assert "do not add up" in refusal(path).title


def test_a_part_that_is_cut_short(model: RawModel, other_model: RawModel, save: Save) -> None:
    split(model, other_model)
    path = save(model, FIRST)
    save(other_model.bytes()[:-9], SECOND)
    assert f"its part {SECOND} is cut short" in refusal(path).title
