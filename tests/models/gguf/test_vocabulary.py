from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.conftest import RawModel

from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.reader import Header, read_header
from slipstream.models.gguf.vocabulary import check_vocabulary, vocabulary_difference, vocabulary_digest

Save = Callable[..., Path]


def header(model: RawModel, save: Save, name: str) -> Header:
    return read_header(save(model, name))


def test_special_tokens_below_five_may_have_other_names(model: RawModel, other_model: RawModel, save: Save) -> None:
    assert not vocabulary_difference(header(model, save, "a.gguf"), header(other_model, save, "b.gguf"))
    target = header(model.vocabulary([*"abcdefghij"]), save, "a.gguf")
    assert not vocabulary_difference(target, header(other_model.vocabulary([*"ABCDEfghij"]), save, "b.gguf"))
    assert vocabulary_difference(target, header(other_model.vocabulary([*"ABCDEFghij"]), save, "c.gguf"))


def test_sizes_may_differ_by_padding(model: RawModel, other_model: RawModel, save: Save) -> None:
    names = [f"token {n}" for n in range(10 + 129)]
    target = header(model.vocabulary(names[:10]), save, "a.gguf")
    other_model.drop("tokenizer.ggml.scores")
    assert not vocabulary_difference(target, header(other_model.vocabulary(names[:-1]), save, "b.gguf"))
    draft = header(other_model.vocabulary(names), save, "c.gguf")
    assert vocabulary_difference(target, draft) and vocabulary_difference(draft, target)


def test_tokens_that_are_added_must_be_the_same(model: RawModel, other_model: RawModel, save: Save) -> None:
    target = header(model, save, "a.gguf")
    assert vocabulary_difference(target, header(other_model.number("tokenizer.ggml.bos_token_id", 3), save, "b.gguf"))
    other_model.number("tokenizer.ggml.bos_token_id", 1).number("tokenizer.ggml.add_bos_token", 0, 7)
    assert vocabulary_difference(target, header(other_model, save, "c.gguf"))
    other_model.number("tokenizer.ggml.add_bos_token", 1, 7).number("tokenizer.ggml.eos_token_id", 8)
    assert not vocabulary_difference(
        target, header(other_model, save, "d.gguf")
    )  # an eos that is not added does not matter
    other_model.number("tokenizer.ggml.add_eos_token", 1, 7)
    assert vocabulary_difference(target, header(other_model, save, "e.gguf"))


def test_a_model_without_a_tokenizer_is_refused(model: RawModel, save: Save) -> None:
    check_vocabulary(header(model, save, "a.gguf"))
    none = model.text("tokenizer.ggml.model", "none").drop("tokenizer.ggml.tokens").drop("tokenizer.ggml.token_type")
    none = none.drop("tokenizer.ggml.scores")
    with pytest.raises(ModelFileError, match="no vocabulary"):
        check_vocabulary(header(none, save, "b.gguf"))


@pytest.mark.parametrize("architecture", ["eagle3", "dflash", "dspark", "slipstream-heads", "gemma4-assistant"])
def test_a_drafters_file_is_no_model(model: RawModel, save: Save, architecture: str) -> None:
    drafter = replace(header(model, save, "drafter.gguf"), architecture=architecture)
    with pytest.raises(ModelFileError, match=rf"is a drafter's file \({architecture}\), not a model") as caught:
        check_vocabulary(drafter)
    assert "slipstream drafters import" in caught.value.hint


def test_mtp_heads_are_told_by_their_name(model: RawModel, save: Save) -> None:
    with pytest.raises(ModelFileError, match="is a drafter's file"):
        check_vocabulary(header(model, save, "mtp-model.gguf"))


def test_models_of_one_digest_have_one_vocabulary(model: RawModel, other_model: RawModel, save: Save) -> None:
    target = header(model, save, "a.gguf")
    assert vocabulary_digest(target) == vocabulary_digest(header(other_model, save, "b.gguf"))
    others = [
        header(other_model.number("tokenizer.ggml.bos_token_id", 3), save, "c.gguf"),
        header(other_model.text("tokenizer.ggml.model", "gpt2"), save, "d.gguf"),
        header(other_model.vocabulary([*"abcdefghij"]), save, "e.gguf"),
    ]
    for other in others:
        assert vocabulary_digest(other) != vocabulary_digest(target) and vocabulary_difference(target, other)
    assert len(set(map(vocabulary_digest, others))) == len(others)
