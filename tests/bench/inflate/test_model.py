"""Inflated models: the small model's outputs, a large model's bytes, rows that never win."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as C
from tests.bench.inflate.file import Inflated
from tests.bench.inflate.model import inflated_model, model_growth
from tests.bench.inflate.shapes import MIXES, NONE, SHAPES, Shape, growth, mix_named, shape_named
from tests.bench.inflate.tensor import LargeTensor
from tests.models.kinds import write_kind
from tests.models.requantize import requantize
from tests.models.small_llama import write_small

from slipstream.models.errors import SlipstreamError, UsageError
from slipstream.models.gguf.parse import U32
from slipstream.models.gguf.reader import REAL_TOKENS, Header, read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.gguf.vocabulary import spare_token
from slipstream.models.heads.file import identity
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.library import rows_at
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.types import LAST_HIDDEN, Floats, TokenTree

MINI = Path(__file__).parents[3] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
TEXT = "that he was in the house of a man"  # one chunk of a prefill: where it is cut depends on time, and F32 rounds
SHAPE = Shape("large", 256, 5, 8, 4, 64, 320, 400)  # four times as wide as the small model
NARROW = Shape("narrow", 256, 3, 4, 2, 64, 256, 284)  # the small model in rows of whole blocks of 256
ROWS = 5


@dataclass(frozen=True)
class Seen:
    """What a model says about a text."""

    rows: Floats  # [ROWS, n_vocab], evaluated in one pass
    single: Floats  # [n_vocab]
    hidden: dict[int, Floats]
    all_logits: Floats  # [ROWS, every row of the vocabulary matrix]


def see(path: Path, points: Sequence[int] = (), options: ContextOptions | None = None) -> Seen:
    options = options or ContextOptions(n_ctx=256, kv="f32", flash=False, threads=1)
    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, options)) as target:
        tokens = model.opening() + model.tokenize(TEXT, False)
        target.request(frozenset({LAST_HIDDEN, *points}))
        assert len(tokens) <= 64 + ROWS
        target.prefill(tokens[:-ROWS])
        found = target.evaluate(tokens[-ROWS], TokenTree.chain(tokens[1 - ROWS :]))
        logits, hidden = found.logits.copy(), {point: rows.copy() for point, rows in found.hidden.items()}
        raw = rows_at(C.llama_get_logits(target.context), ROWS, model.n_rows).copy()
        target.keep(())
        return Seen(logits, target.evaluate(tokens[1 - ROWS]).logits[0].copy(), hidden, raw)


def made(folder: Path, source: Path, shape: Shape, mix: str) -> Path:
    path = folder / f"{shape.name}-{mix}.gguf"
    inflated_model(read_header(source), shape, mix).write(path)
    return path


def requantized(source: Path, mix: str) -> Path:
    """llama.cpp's own copy of a model in another quantization."""
    path = source.with_name(f"{source.stem}-by-llama-{mix}.gguf")
    params = C.llama_model_quantize_default_params()
    params.nthread, params.ftype = 1, int(MIXES[mix][1])
    assert C.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)) == 0
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("small") / "small.gguf")


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mini") / "mini.gguf"
    requantize(MINI, path, "f32")
    return path


@pytest.mark.parametrize(
    "shape",
    [
        replace(SHAPE, name="as many queries to a key"),
        replace(SHAPE, name="more queries to a key", n_head=16, n_head_kv=2),
        replace(SHAPE, name="fewer queries to a key", n_head=4, n_head_kv=4),
        replace(SHAPE, name="published with heads twice as large", n_head=4, n_head_kv=2, head=128),
        replace(SHAPE, name="sixteen times as wide", n_embd=1024, n_layer=3, tied=True),
        replace(SHAPE, name="published with fewer layers", n_layer=2, n_ff=1024),
    ],
    ids=lambda shape: shape.name,
)
def test_in_f32_not_a_bit_differs_where_the_width_grows_by_a_power_of_four(
    small: Path, tmp_path: Path, shape: Shape
) -> None:
    layers = model_growth(read_header(small), shape).layers
    before, after = see(small, range(3)), see(made(tmp_path, small, shape, "F32"), layers)
    assert np.array_equal(before.rows, after.rows) and np.array_equal(before.single, after.single)
    width = before.hidden[0].shape[1]
    for point, place in ((LAST_HIDDEN, LAST_HIDDEN), *enumerate(layers)):
        assert np.array_equal(before.hidden[point], after.hidden[place][:, :width])
        assert not after.hidden[place][:, width:].any()


@pytest.mark.slow
def test_other_widths_round_and_no_more(small: Path, mini: Path, tmp_path: Path) -> None:
    for source, shape in ((small, replace(SHAPE, n_embd=192)), (mini, Shape("x3", 768, 15, 8, 4, 64, 1024, 5000))):
        before, after = see(source), see(made(tmp_path, source, shape, "F32"))
        assert np.abs(before.rows - after.rows).max() < 1e-4 * np.abs(before.rows).max()
        assert before.rows.argmax(axis=1).tolist() == after.rows.argmax(axis=1).tolist()
        assert before.single.argmax() == after.single.argmax()


@pytest.mark.parametrize("mix", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_a_quantization_is_llama_cpps_own_of_the_small_model(small: Path, tmp_path: Path, mix: str) -> None:
    same = made(tmp_path, small, NARROW, "F32")
    assert np.array_equal(see(same).rows, see(small).rows)
    before, after = see(requantized(same, mix)), see(made(tmp_path, small, replace(SHAPE, n_embd=1024), mix))
    assert np.array_equal(before.rows, after.rows) and np.array_equal(before.single, after.single)


@pytest.mark.slow
def test_the_setting_of_the_bundled_model_is_met_to_the_bit_too(mini: Path, tmp_path: Path) -> None:
    options = ContextOptions(n_ctx=256, kv="q8_0", flash=True, same_text=True, threads=1)
    requantize(MINI, tmp_path / "small.gguf", "q8_0")
    shape = Shape("x4", 1024, 15, 16, 8, 64, 1024, 4200, tied=True)
    before, after = see(tmp_path / "small.gguf", (3,), options), see(made(tmp_path, MINI, shape, "Q8_0"), (3,), options)
    assert np.array_equal(before.rows, after.rows) and np.array_equal(before.single, after.single)
    assert np.array_equal(before.hidden[3], after.hidden[3][:, :256])


@pytest.mark.slow
def test_k_quants_are_llama_cpps_mix_and_no_width_changes_their_outputs(small: Path, tmp_path: Path) -> None:
    wide = Shape("wide", 1024, 3, 16, 8, 64, 768, 512)
    before, after = see(made(tmp_path, small, NARROW, "Q4_K_M")), see(made(tmp_path, small, wide, "Q4_K_M"))
    assert np.array_equal(before.rows, after.rows) and np.array_equal(before.single, after.single)
    deep = replace(NARROW, name="deep", n_layer=19)
    theirs = read_header(requantized(made(tmp_path, small, deep, "F32"), "Q4_K_M"))
    ours = {t.name: t.type_name for t in inflated_model(read_header(small), deep, "Q4_K_M").header(tmp_path).tensors}
    assert ours == {tensor.name: tensor.type_name for tensor in theirs.tensors}
    assert {"Q4_K", "Q6_K"} < set(ours.values())


@pytest.mark.slow
def test_added_rows_are_a_tokens_copies_and_never_win(small: Path, mini: Path, tmp_path: Path) -> None:
    for source, shape in ((small, SHAPE), (mini, Shape("m", 512, 15, 8, 4, 64, 768, 5000, tied=True))):
        real = read_header(source).n_vocab
        for mix in ("F32", "Q4_0"):
            seen = see(made(tmp_path, source, shape, mix))
            assert seen.rows.shape[1] == real and seen.all_logits.shape[1] == shape.n_vocab
            token = spare_token(read_header(source))
            assert np.array_equal(
                seen.all_logits[:, real:], np.repeat(seen.all_logits[:, [token]], shape.n_vocab - real, 1)
            )
            assert (seen.all_logits.argmax(axis=1) < real).all()


def test_the_spare_token_of_the_bundled_model_is_one_it_never_writes(mini: Path) -> None:
    assert "reserved" in read_header(mini).tokens[spare_token(read_header(mini))]
    seen = see(mini)
    behind = seen.rows.max(axis=1) - seen.rows[:, spare_token(read_header(mini))]
    assert behind.min() > -np.log(0.05)  # llama.cpp's own min-p cuts what is less likely than that


@pytest.mark.slow
def test_no_text_becomes_an_added_token(small: Path, mini: Path, tmp_path: Path) -> None:
    for source, shape in ((small, SHAPE), (mini, Shape("m", 512, 15, 8, 4, 64, 768, 5000, tied=True))):
        path = made(tmp_path, source, shape, "Q8_0")
        with closing(LlamaModel(source)) as before, closing(LlamaModel(path)) as after:
            text = f"{TEXT} <|inflated_{before.n_vocab + 3}|> \u00e9\u4e2d"
            for special in (False, True):
                assert before.tokenize(text, special) == after.tokenize(text, special)
            assert (after.n_vocab, after.n_rows) == (before.n_vocab, shape.n_vocab)
            assert after.ends == before.ends and after.text_of(before.n_vocab) == ""
        header = read_header(path)
        assert (header.n_vocab, header.n_rows, len(header.tokens)) == (before.n_vocab, shape.n_vocab, before.n_vocab)


@pytest.mark.parametrize("count", [0, -3, SHAPE.n_vocab, 1 << 40, "many"])
def test_a_count_of_tokens_that_cannot_be_is_passed_over(small: Path, tmp_path: Path, count: int | str) -> None:
    plan = inflated_model(read_header(small), SHAPE, "Q8_0")
    assert plan.header(tmp_path).n_vocab == 284
    header = replace(plan, metadata={**plan.metadata, REAL_TOKENS: (U32, count)}).header(tmp_path)
    assert header.n_vocab == header.n_rows == len(header.tokens) == SHAPE.n_vocab


@pytest.mark.slow
def test_the_file_is_as_large_as_it_says_and_nearly_without_zeros(mini: Path, tmp_path: Path) -> None:
    shape = Shape("m", 1024, 16, 16, 8, 64, 2816, 8000)
    plan = inflated_model(read_header(mini), shape, "Q8_0")
    path = made(tmp_path, mini, shape, "Q8_0")
    found = os.stat(path)
    assert plan.nbytes <= found.st_size <= plan.nbytes + 2_000_000
    assert found.st_blocks * 512 >= found.st_size
    header = read_header(path)
    assert header.weight_bytes == plan.nbytes
    zeros = sum(int((read_tensor(header, tensor) == 0).sum()) for tensor in header.tensors)
    assert zeros < 0.15 * sum(int(np.prod(tensor.shape)) for tensor in header.tensors)


def test_a_large_matrix_is_never_whole_in_memory() -> None:
    plan = inflated_model(read_header(MINI), SHAPES["13b"], "F16")
    largest = max(
        (tensor for tensor in plan.tensors if isinstance(tensor, LargeTensor)), key=lambda t: np.prod(t.shape)
    )
    assert np.prod(largest.shape) * 2 > 1 << 27
    assert next(largest.pieces()).nbytes <= 1 << 24


@pytest.mark.parametrize(
    ("name", "weights"),
    [("135m", 0.1345), ("0.5b", 0.494), ("1b", 1.10), ("3b", 3.21), ("7b", 6.74), ("8b", 8.03), ("13b", 13.02)],
)
def test_the_shapes_are_the_published_ones(name: str, weights: float) -> None:
    plan = inflated_model(read_header(MINI), shape_named(name), "F16")
    shape = SHAPES[name]
    kept_apart = shape.n_vocab * shape.n_embd * 2 if shape.tied and not _tied(plan) else 0
    assert (plan.nbytes - kept_apart) / 2e9 == pytest.approx(weights, rel=0.01)


def _tied(plan: Inflated) -> bool:
    return "output.weight" not in {tensor.name for tensor in plan.tensors}


def test_layers_are_spread_and_queries_stay_with_their_key(mini: Path) -> None:
    grown = model_growth(read_header(mini), SHAPES["1b"])
    assert grown.layers == (0, 1, 3, 4, 6, 7, 9, 11, 12, 14, 15, 17, 18, 20)
    assert grown.layer(1) == 1 and grown.layer(14) == 22
    per_key = grown.large.n_head // grown.large.n_head_kv
    for place, head in enumerate(grown.heads.tolist()):
        if head != NONE:
            assert grown.kv_heads[place // per_key] == head // 2
    assert sorted(head for head in grown.heads.tolist() if head != NONE) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["135m", "1b", "3b", "7b", "8b", "13b"])
def test_a_deep_model_is_widened_to_every_shape_of_enough_heads_at_its_cost(name: str) -> None:
    def read_in_a_pass(shape: Shape) -> int:
        layer = 2 * (shape.n_head + shape.n_head_kv) * shape.head + 3 * shape.n_ff
        return shape.n_embd * (shape.n_layer * layer + shape.n_vocab)

    deep = SHAPES["135m"]
    found = growth(deep, SHAPES[name])
    assert found.large.n_layer >= deep.n_layer and len(set(found.layers)) == deep.n_layer
    assert read_in_a_pass(found.large) == pytest.approx(read_in_a_pass(SHAPES[name]), rel=0.012)


def test_every_quantization_is_one_target_to_heads_and_every_shape_another(small: Path, tmp_path: Path) -> None:
    same = {identity(read_header(made(tmp_path, small, SHAPE, mix))) for mix in ("F32", "Q8_0")}
    other = identity(read_header(made(tmp_path, small, replace(SHAPE, name="other", n_ff=384), "Q8_0")))
    assert len(same) == 1 and other not in same and identity(read_header(small)) not in same


def test_a_file_that_stands_there_is_known_again(small: Path, tmp_path: Path) -> None:
    header = read_header(small)
    path = made(tmp_path, small, SHAPE, "Q8_0")
    assert inflated_model(header, SHAPE, "Q8_0").stands_at(path)
    for shape, mix in ((SHAPE, "Q4_0"), (replace(SHAPE, n_layer=6), "Q8_0")):
        assert not inflated_model(header, shape, mix).stands_at(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert not inflated_model(header, SHAPE, "Q8_0").stands_at(path)


def test_what_cannot_be_inflated_is_told(small: Path, tmp_path: Path) -> None:
    def refused(source: Path, shape: Shape) -> str:
        header: Header = read_header(source)
        with pytest.raises(SlipstreamError) as caught:
            inflated_model(header, shape, "F32")
        assert caught.value.hint
        return caught.value.title

    assert "only the llama architecture" in refused(write_kind(tmp_path / "qwen3.gguf", "qwen3"), SHAPE)
    bare = replace(read_header(small), metadata={"llama.embedding_length": 64})
    with pytest.raises(SlipstreamError, match="does not give one width"):
        inflated_model(bare, SHAPE, "F32")
    known = {k: v for k, v in read_header(small).metadata.items() if "epsilon" not in k}
    with pytest.raises(SlipstreamError, match="epsilon of its norms"):
        inflated_model(replace(bare, metadata=known), SHAPE, "F32")
    assert "not as wide (32, not 64)" in refused(small, replace(SHAPE, n_embd=32))
    assert "not as rich in units (0, not 128)" in refused(small, replace(SHAPE, n_layer=2))
    assert inflated_model(read_header(small), replace(SHAPE, n_vocab=100), "F32").header(tmp_path).n_rows == 284
    assert "heads of 64 do not divide" in refused(small, replace(SHAPE, n_head=3, n_head_kv=3, head=80))
    with pytest.raises(UsageError, match="no shape '2b'"):
        shape_named("2b")
    with pytest.raises(UsageError, match="no quantization 'Q5_K_M'"):
        mix_named("Q5_K_M")
    assert (shape_named("7B"), mix_named("q4_k_m")) == (SHAPES["7b"], "Q4_K_M")
