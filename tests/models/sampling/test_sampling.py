"""The sampler against a naive one: ties, order, penalties, purity, errors."""

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.library.catalog import catalog
from slipstream.models.llama.model import LlamaModel
from slipstream.models.sampling.sampler import LONGEST, Sampler, checked, gumbel, recommended, repetitions
from slipstream.models.sampling.top_k import NONE, best
from slipstream.models.types import Floats, History

EMPTY = History([])
BUNDLED = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"


def naive(
    sampler: Sampler, logits: Floats, history: History, ahead: Sequence[int] = ()
) -> tuple[list[int], list[float]]:
    """What ``distribution`` should return, by a full sort and plain loops."""
    row = [-math.inf if math.isnan(x) else float(x) for x in logits]
    for token, bias in sampler.bias:
        if 0 <= token < len(row):
            row[token] = float(np.float32(row[token]) + np.float32(bias))
    window = [*history.tokens, *ahead][-sampler.penalty_window :] if sampler.penalty_window else []
    for token in set(window):
        if 0 <= token < len(row):
            x = np.float32(row[token])
            rate = np.float32(sampler.repetition_penalty)
            row[token] = float((x / rate if x > 0 else x * rate) - np.float32(sampler.presence_penalty))
    for token, size in naive_repetitions([*history.tokens, *ahead][-sampler.dry_window :], sampler).items():
        if sampler.dry and 0 <= token < len(row):
            penalty = np.float32(sampler.dry * sampler.dry_base ** (size - sampler.dry_allowed))
            row[token] = float(np.float32(row[token]) - penalty)
    ids = sorted((i for i in range(len(row)) if row[i] > -math.inf), key=lambda i: (-row[i], i))
    if sampler.temperature == 0:
        return ids[:1], [1.0]
    sigma = float(np.std([row[i] for i in ids]))
    if sampler.top_n_sigma:
        ids = [i for i in ids if row[ids[0]] - row[i] <= sampler.top_n_sigma * sigma]
    ids = ids[: sampler.top_k or len(ids)]
    below = [row[i] - row[ids[0]] for i in ids]
    keep, mass, total = 0, 0.0, sum(map(math.exp, below))
    while keep < len(ids) and (sampler.top_p == 1 or mass < sampler.top_p * total):
        mass += math.exp(below[keep])
        keep += 1
    ids = [i for i, x in zip(ids[:keep], below, strict=False) if x >= (math.log(sampler.min_p or 1e-300))]
    weights = [math.exp((row[i] - row[ids[0]]) / sampler.temperature) for i in ids]
    return ids, [w / sum(weights) for w in weights]


def naive_repetitions(text: list[int], sampler: Sampler) -> dict[int, int]:
    """The longest end of the text that stands before each token, by comparing every pair of stretches."""
    found: dict[int, int] = {}
    for place in range(1, len(text)):
        for size in range(1, min(place, LONGEST) + 1):
            end = text[len(text) - size :]
            repeats = text[place - size : place] == end and not sampler.breakers.intersection(end)
            if repeats and size >= sampler.dry_allowed:
                found[text[place]] = max(size, found.get(text[place], 0))
    return found


def naive_pick(sampler: Sampler, logits: Floats, history: History, ahead: Sequence[int] = ()) -> int:
    ids, probs = naive(sampler, logits, history, ahead)
    noise = gumbel(sampler.seed, history.position + len(ahead), np.array(ids))
    scores = [math.log(p) + float(g) if p > 0 else -math.inf for p, g in zip(probs, noise, strict=True)]
    return ids[scores.index(max(scores))]


def random_case(rng: np.random.Generator) -> tuple[Sampler, Floats, History, list[int]]:
    size = int(rng.choice([1, 2, 5, 63, 64, 65, 500, 4096, 4133, 20_011]))
    logits = rng.normal(0, rng.choice([0.1, 3.0]), size).astype(np.float32)
    if rng.random() < 0.5:
        logits = np.round(logits * 2) / np.float32(2)
    if rng.random() < 0.3:
        logits[rng.random(size) < 0.5] = rng.choice(np.array([-np.inf, np.nan, logits[0]], np.float32))
        logits[rng.integers(size)] = 1.0
    sampler = Sampler(
        temperature=float(rng.choice([0, 0.2, 0.8, 1.5])), top_k=int(rng.choice([0, 1, 2, 40, 64, 65, 1000])),
        top_p=float(rng.choice([0.3, 0.95, 1.0])), min_p=float(rng.choice([0.0, 0.05, 0.5])),
        repetition_penalty=float(np.float32(rng.choice([1.0, 0.8, 1.5]))),
        presence_penalty=float(rng.choice([0.0, -0.5, 0.5, 4.0])), penalty_window=int(rng.choice([0, 1, 8, 256])),
        top_n_sigma=float(rng.choice([0.0, 0.0, 0.5, 1.5])), dry=float(rng.choice([0.0, 0.0, 0.8])),
        dry_allowed=int(rng.choice([1, 2])), dry_window=int(rng.choice([1, 30, 1024])),
        breakers=frozenset(rng.choice(size, 2).tolist()),
        bias=((int(rng.integers(size)), float(rng.choice([-4.0, 4.0]))),) if rng.random() < 0.3 else (),
        seed=int(rng.integers(-(2**62), 2**62)),
    )  # fmt: skip
    best = np.argsort(-logits)[:40]  # penalties must reach what would win without them
    few = best[:3] if rng.random() < 0.5 else np.concatenate((best, rng.integers(0, size + 5, 40)))
    tokens = [int(t) for t in rng.choice(few, 60)]
    cut = int(rng.integers(0, 61))
    return sampler, logits, History(tokens[:cut], int(rng.integers(5))), tokens[cut:]


@pytest.mark.parametrize("block", range(20))
def test_equals_the_naive_sampler(block: int) -> None:
    rng = np.random.default_rng(block)
    for _ in range(10):
        sampler, logits, history, ahead = random_case(rng)
        ids, probs = sampler.distribution(logits, history, ahead)
        expected_ids, expected_probs = naive(sampler, logits, history, ahead)
        assert ids.tolist() == expected_ids
        np.testing.assert_allclose(probs, expected_probs, rtol=1e-9)
        assert sampler.pick(logits, history, ahead) == naive_pick(sampler, logits, history, ahead)


@pytest.mark.parametrize("size", [4_096, 20_011])
@pytest.mark.parametrize("level", [-50.0, -math.inf])
@pytest.mark.parametrize(
    "best",
    [
        {77: 10.0},
        {-1: 10.0},  # beyond the last whole block
        {5: 10.0, 5 + 3 * (20_011 // 64): 9.9},  # both in one block
        {5: 10.0, 6: 10.0, 2_000: 8.0},
        {5: 10.0, 6: 6.9, 7: 6.8},  # by min-p one is left, by top-k three
    ],
)
def test_best_tokens_that_stand_alone_or_among_few(size: int, level: float, best: dict[int, float]) -> None:
    row = np.full(size, level, np.float32)
    row[list(best)] = list(best.values())
    for settings_of in ({}, {"min_p": 0.0}, {"repetition_penalty": 1.5}, {"top_p": 1.0, "top_k": 3}):
        sampler, history = Sampler(**settings_of), History([5, 5, 77])  # type: ignore[arg-type]
        ids, probs = sampler.distribution(row, history)
        expected_ids, expected_probs = naive(sampler, row, history)
        assert ids.tolist() == expected_ids
        np.testing.assert_allclose(probs, expected_probs, rtol=1e-9)
        assert sampler.pick(row, history) == naive_pick(sampler, row, history)


def test_top_p_and_min_p_keep_the_lowest_ids_and_a_tiny_temperature_the_best() -> None:
    row = np.zeros(4096, np.float32)
    for top_k in (0, 64):
        total = top_k or 4096
        ids, _ = Sampler(1.0, top_k, 0.5, 0.0).distribution(row, EMPTY)
        assert ids.tolist() == list(range(total // 2))
        assert len(Sampler(1.0, top_k, 1.0, 0.99).distribution(row, EMPTY)[0]) == total
    row = np.array([1.0, 1.5, 1.499], np.float32)
    assert Sampler(1e-300).pick(row, EMPTY) == 1
    ids, probs = Sampler(1e-300, 0, 1.0, 0.0).distribution(row, EMPTY)
    assert (ids.tolist(), probs.tolist()) == ([1, 2, 0], [1.0, 0.0, 0.0])


def test_the_window_covers_the_end_of_history_and_what_is_ahead() -> None:
    row = np.zeros(6, np.float32)
    sampler = Sampler(0, presence_penalty=1.0, penalty_window=3)
    assert sampler.pick(row, History([0, 1, 2])) == 3 and sampler.pick(row, History([9, 0, 1, 2])) == 3
    assert sampler.pick(row, History([0, 1, 2]), [3]) == 0 and sampler.pick(row, History([4, 0]), [1, 2]) == 3
    assert sampler.pick(row, History([4]), [0, 1, 2, 3, 4]) == 0


def test_only_the_position_and_the_window_matter() -> None:
    """A pick ahead of the history is the pick that comes once those tokens are committed; trimming changes nothing."""
    rng = np.random.default_rng(1)
    sampler = Sampler(1.0, repetition_penalty=1.3, penalty_window=4, seed=5)
    for _ in range(50):
        row = rng.normal(size=300).astype(np.float32)
        tokens = [int(t) for t in rng.integers(0, 300, 12)]
        picks = {sampler.pick(row, History(tokens[:n]), tokens[n:]) for n in (2, 7, 12)}
        picks.add(sampler.pick(row, History(tokens[5:], trimmed=5)))
        assert len(picks) == 1


@pytest.mark.parametrize("size", [100, 40_000])
def test_logits_are_neither_changed_nor_needed_contiguous(size: int) -> None:
    rng = np.random.default_rng(2)
    wide = rng.normal(size=(size, 2)).astype(np.float32)
    wide[3, 0] = np.nan
    copy = wide[:, 0].copy()
    strided = wide[:, 0]
    strided.setflags(write=False)
    history = History([int(t) for t in rng.integers(0, size, 50)])
    for sampler in (Sampler(0), Sampler(), Sampler(1.0, 0), Sampler(repetition_penalty=1.1), Sampler(0.5, 0, 1.0, 0.0)):
        assert sampler.rank(strided, history) == sampler.rank(copy, history)
    np.testing.assert_array_equal(strided, copy)


def test_greedy_confidence_is_the_probability_among_the_64_best() -> None:
    row = np.random.default_rng(3).normal(size=1000).astype(np.float32)
    best = np.sort(row.astype(np.float64))[::-1][:64]
    tokens, confidences = Sampler(0).rank(row, EMPTY)
    assert tokens == [row.argmax()]
    assert confidences == pytest.approx([np.exp(best[0]) / np.exp(best).sum()])
    tokens, shares = Sampler(top_k=2).rank(np.array([0.0, 5.0, 4.9, 1.0], np.float32), EMPTY, count=4)
    assert sorted(tokens) == [1, 2] and all(0 < share < 1 for share in shares)


@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("sampler", [Sampler(0), Sampler(), Sampler(1.0, 0), Sampler(0, presence_penalty=1.0)])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_output_without_a_number_is_an_error(sampler: Sampler, size: int, value: float) -> None:
    row = np.full(size, value, np.float32)
    with pytest.raises(SlipstreamError, match="not a number") as error:
        sampler.pick(row, History([0, 1]))
    assert error.value.hint


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5; it must be 0 or more."),
        ({"temperature": math.nan}, "temperature is nan; it must be 0 or more."),
        ({"temperature": math.inf}, "temperature is inf; it must be 0 or more."),
        ({"top_k": -1}, "top-k is -1; it must be 0 (off) or more."),
        ({"top_p": 0.0}, "top-p is 0.0; it must be above 0 and at most 1 (off)."),
        ({"top_p": 1.01}, "top-p is 1.01; it must be above 0 and at most 1 (off)."),
        ({"min_p": 1.0}, "min-p is 1.0; it must be 0 (off) or more and below 1."),
        ({"min_p": math.nan}, "min-p is nan; it must be 0 (off) or more and below 1."),
        ({"repetition_penalty": 0.0}, "repetition penalty is 0.0; it must be 0.01 to 100."),
        ({"presence_penalty": math.inf}, "presence penalty is inf; it must be -100 to 100."),
        ({"penalty_window": -1}, "penalty window is -1; it must be 0 or more."),
    ],
)
def test_values_out_of_range_are_named(values: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Sampler(**values)  # type: ignore[arg-type]
    assert error.value.title == message


@pytest.mark.parametrize("temperature", [0.0, 0.2, 0.8, 1.5])
def test_rank_begins_with_the_token_that_pick_draws_and_goes_on_by_noisy_score(temperature: float) -> None:
    rng = np.random.default_rng(3)
    for seed in range(30):
        sampler = Sampler(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        logits = rng.standard_normal(50, np.float32) * 3
        history = History([1, 2, 3])
        tokens, shares = sampler.rank(logits, history, [4], count=4)
        noise = gumbel(seed, 4, np.arange(50)) if temperature else np.zeros(50)
        noisy = logits.astype(np.float64) + temperature * noise
        assert tokens[0] == sampler.pick(logits, history, [4]) and tokens == np.argsort(-noisy)[:4].tolist()
        plain, with_noise = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (logits.astype(float), noisy))
        assert shares == pytest.approx(np.sqrt(plain * with_noise)[tokens].tolist())


@pytest.mark.parametrize("allowed", [1, 2, 39, 40, 41, 300])
def test_few_allowed_tokens_of_many_are_found_in_order_and_quickly(allowed: int) -> None:
    rng = np.random.default_rng(allowed)
    row = np.full(151_936, -np.inf, np.float32)
    ids = rng.choice(row.size, allowed, replace=False)
    row[ids] = rng.integers(0, 30, allowed)  # with equals among them
    for penalised in (NONE, np.sort(ids[: allowed // 2])):
        adjusted = row[penalised] - 3
        with_them = row.copy()
        with_them[penalised] = adjusted
        wanted = np.lexsort((np.arange(row.size), -with_them))[: min(40, allowed)]
        costs = []
        for _ in range(5):
            began = thread_time()
            found, values = best(row, 40, penalised, adjusted)
            costs.append(thread_time() - began)
        assert found.tolist() == wanted.tolist() and np.array_equal(values, with_them[wanted])
        assert min(costs) < 4e-3  # a partition of the row took 14 ms


def test_the_keys_of_a_file_are_read_as_single_precision_wrote_them_where_there_are_any() -> None:
    found = recommended(
        {
            "general.sampling.temp": 0.6000000238418579, "general.sampling.top_k": 20,
            "general.sampling.top_p": 0.949999988079071, "general.sampling.penalty_repeat": 1.0499999523162842,
            "general.sampling.mirostat": 2, "general.name": "x",
        }
    )  # fmt: skip
    assert found == {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "min_p": 0.0}
    assert isinstance(found["top_k"], int)
    assert recommended({}) == recommended({"general.sampling.sequence": "top_k;temp"}) == {}
    assert recommended({"general.sampling.temp": 0.15}) == {"temperature": 0.15}
    assert recommended({"general.sampling.top_k": -1}) == {"top_k": 0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temp", -1.0), ("temp", math.nan), ("temp", math.inf), ("temp", 1e30), ("temp", "0.6"), ("temp", True),
        ("top_p", 0.0), ("top_p", 1.5), ("min_p", 1.0), ("top_k", 1e300), ("penalty_repeat", 0.0),
        ("penalty_repeat", [1.0]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_left_out(key: str, value: object) -> None:
    assert recommended({f"general.sampling.{key}": value}) == {}


def test_the_catalogue_means_a_family_in_any_size() -> None:
    shipped = catalog()
    assert shipped.samplings and not shipped.problem
    for entry in shipped.samplings:
        assert entry.note and entry.values and checked(entry.values).items() >= entry.values.items()
    gemma = {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "min_p": 0.0}
    for name in ("gemma-3-4b-it", "google_gemma-3-27b-it-Q4_K_M", "Gemma 3 12b It", "unsloth/gemma-3-4b-it-GGUF"):
        assert shipped.sampling([name]) == gemma, name
    assert shipped.sampling(["SmolLM2-135M-Instruct.Q4_1"])["temperature"] == 0.8
    others = ("SmolLM2-360M-Instruct", "gemma-2-9b-it", "Qwen3-Coder-30B-A3B", "gemma-3", "Qwen3-4B-Instruct-2507")
    for name in (*others, "slipstream mini"):
        assert shipped.sampling([name]) == {}, name


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
