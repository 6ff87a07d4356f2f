"""DRY, top-n-sigma and bias against llama.cpp's own samplers."""

import ctypes
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

from slipstream.models.errors import UsageError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import Sampler, repetitions
from slipstream.models.types import Floats, History

BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with closing(LlamaModel(BUNDLED, vocabulary_only=True)) as opened:
        yield opened


def theirs(sampler: Any, row: Floats, tokens: list[int]) -> Floats:
    """The row after one of llama.cpp's samplers, which is freed."""
    for token in tokens:
        C.llama_sampler_accept(sampler, token)
    entries = (C.llama_token_data * row.size)(*((i, float(x), 0.0) for i, x in enumerate(row)))
    array = C.llama_token_data_array(entries, row.size, -1, False)
    C.llama_sampler_apply(sampler, ctypes.byref(array))
    found = np.full(row.size, -np.inf, np.float32)
    for entry in array.data[: array.size]:
        found[entry.id] = entry.logit
    C.llama_sampler_free(sampler)
    return found


def ours(sampler: Sampler, row: Floats, tokens: list[int]) -> list[int]:
    return [int(token) for token in sampler.distribution(row, History(tokens))[0]]


@pytest.mark.parametrize("kinds", [2, 3, 6])
@pytest.mark.parametrize("breaker", ["", "fox"])
def test_repetitions_cost_what_they_cost_in_llama_cpp(model: LlamaModel, kinds: int, breaker: str) -> None:
    rng = np.random.default_rng(kinds)
    words = [model.tokenize(word, False)[0] for word in ("fox", "sea", "the", "small", "and", "red")][:kinds]
    vocabulary = C.llama_model_get_vocab(model.pointer)
    names = (ctypes.c_char_p * 1)(breaker.encode())
    breakers = frozenset(t for t in range(model.n_vocab) if breaker and breaker.encode() in model.piece(t))
    changed = 0
    for _ in range(40):
        tokens = [int(t) for t in rng.choice(words, rng.integers(1, 40))]
        row = rng.normal(0, 3, model.n_vocab).astype(np.float32)
        own = C.llama_sampler_init_dry(vocabulary, 0.8, 1.75, 2, 1024, names, 1 if breaker else 0)
        expected = theirs(own, row, tokens)
        sampler = Sampler(1.0, 0, 1.0, 0.0, dry=0.8, breakers=breakers)
        ids, probs = sampler.distribution(row, History(tokens))
        weights = np.exp(expected.astype(np.float64) - expected.max())
        np.testing.assert_allclose(probs, (weights / weights.sum())[ids], rtol=1e-4, atol=1e-12)
        changed += int((expected != row).sum())
    assert changed > 10


@pytest.mark.parametrize("sigmas", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 40])
def test_top_n_sigma_keeps_what_llama_cpp_keeps(model: LlamaModel, sigmas: float, top_k: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(10):
        row = rng.normal(0, 3, 5_000).astype(np.float32)
        row[rng.integers(0, row.size, 9)] = -np.inf
        kept = theirs(C.llama_sampler_init_top_n_sigma(sigmas), row, [])
        best = [int(i) for i in np.argsort(-kept, kind="stable") if kept[i] > -np.inf]
        found = ours(Sampler(1.0, top_k, 1.0, 0.0, top_n_sigma=sigmas), row, [])
        assert found == best[: top_k or len(best)]


def test_a_bias_comes_first_and_may_forbid() -> None:
    row = np.array([4.0, 3.0, -1.0, 2.0], np.float32)
    assert Sampler(0, bias=((2, 6.0),)).pick(row, History([])) == 2
    assert Sampler(0, bias=((0, -math.inf), (99, 5.0))).pick(row, History([])) == 1
    assert ours(Sampler(1.0, 0, 1.0, 0.0, bias=((0, -math.inf),)), row, []) == [1, 3, 2]
    halved = Sampler(0, repetition_penalty=2.0, bias=((1, 3.5),))
    assert halved.pick(row, History([1])) == 0, "6.5 / 2 is less than 4"


def test_a_breaker_and_a_short_text_hide_repetitions() -> None:
    assert repetitions([1, 2, 3, 1, 2], (), 2) == {3: 2} and repetitions([1, 2, 3, 1, 2], (1,), 2) == {}
    assert repetitions([1, 2, 3, 1, 2], (1,), 1) == {3: 1} and repetitions([1, 2, 3, 1, 2], (2,), 1) == {}
    assert repetitions([5, 5, 5, 5], (), 2) == {5: 3}
    assert repetitions([1], (), 1) == repetitions([], (), 1) == {}
    assert max(repetitions([7] * 500, (), 2).values()) == 64


@pytest.mark.parametrize("wrong", [{"dry": -1.0}, {"dry": math.nan}, {"top_n_sigma": -0.1}, {"dry_base": 9.0}])
def test_what_is_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="must be"):
        Sampler(**wrong)  # type: ignore[arg-type]
