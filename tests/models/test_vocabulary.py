from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.models.errors import UsageError
from slipstream.models.gguf import Header, read_header
from slipstream.models.vocabulary import check_same_vocabulary

if TYPE_CHECKING:
    from tests.models.conftest import RawModel

Save = Callable[..., Path]
BUNDLED = Path(__file__).parents[2] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"


def refusal(target: Header, draft: Header) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check_same_vocabulary(target, draft)
    assert caught.value.code == 2 and caught.value.hint and caught.value.title.isprintable()
    return caught.value


def header(model: RawModel, save: Save, name: str) -> Header:
    return read_header(save(model, name))


def test_equal_vocabularies_pass(model: RawModel, other_model: RawModel, save: Save) -> None:
    check_same_vocabulary(header(model, save, "a.gguf"), header(other_model, save, "b.gguf"))


def test_the_first_token_that_differs_is_named(model: RawModel, other_model: RawModel, save: Save) -> None:
    target = header(model.vocabulary([*"abcdefghij"]), save, "a.gguf")
    draft = header(other_model.vocabulary([*"abcdef", "\x1b[2J", *"hiJ"]), save, "b.gguf")
    assert r"token 6 is '\x1b[2J', but the target's is 'g'" in refusal(target, draft).title


def test_special_tokens_below_five_may_have_other_names(model: RawModel, other_model: RawModel, save: Save) -> None:
    target = header(model.vocabulary([*"abcdefghij"]), save, "a.gguf")
    check_same_vocabulary(target, header(other_model.vocabulary([*"ABCDEfghij"]), save, "b.gguf"))
    last = header(other_model.vocabulary([*"ABCDEFghij"]), save, "c.gguf")
    assert "token 5 is 'F'" in refusal(target, last).title


def test_sizes_may_differ_by_padding(model: RawModel, other_model: RawModel, save: Save) -> None:
    names = [f"token {n}" for n in range(10 + 129)]
    target = header(model.vocabulary(names[:10]), save, "a.gguf")
    other_model.drop("tokenizer.ggml.scores")
    check_same_vocabulary(target, header(other_model.vocabulary(names[:-1]), save, "b.gguf"))
    draft = header(other_model.vocabulary(names), save, "c.gguf")
    assert "has 139 tokens, but the target has 10" in refusal(target, draft).title
    assert "has 10 tokens, but the target has 139" in refusal(draft, target).title


def test_the_kind_of_tokenizer_comes_first(model: RawModel, other_model: RawModel, save: Save) -> None:
    draft = header(other_model.text("tokenizer.ggml.model", "gpt2").vocabulary([*"klmnopqrst"]), save, "b.gguf")
    assert "'gpt2', but the target's is 'llama'" in refusal(header(model, save, "a.gguf"), draft).title


def test_tokens_that_are_added_must_be_the_same(model: RawModel, other_model: RawModel, save: Save) -> None:
    target = header(model, save, "a.gguf")
    draft = header(other_model.number("tokenizer.ggml.bos_token_id", 3), save, "b.gguf")
    assert "bos token differs: token 3, added, but the target's is token 1, added" in refusal(target, draft).title
    other_model.number("tokenizer.ggml.bos_token_id", 1).number("tokenizer.ggml.add_bos_token", 0, 7)
    assert "bos token differs: not added" in refusal(target, header(other_model, save, "c.gguf")).title
    other_model.number("tokenizer.ggml.add_bos_token", 1, 7).number("tokenizer.ggml.eos_token_id", 8)
    check_same_vocabulary(target, header(other_model, save, "d.gguf"))  # an eos that is not added does not matter
    other_model.number("tokenizer.ggml.add_eos_token", 1, 7)
    assert "eos token differs: token 8, added" in refusal(target, header(other_model, save, "e.gguf")).title
