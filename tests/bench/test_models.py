"""The models that the benchmark makes, and the trees that it drafts."""

from pathlib import Path

import numpy as np
import pytest
from tests.bench.clocks import Spread, TimedSampler
from tests.bench.plain import compare_with_bare, opened, ordinary, run_loop
from tests.bench.shapes import NODES_1, NODES_4, NODES_16, ScriptedDrafter, TreeShape
from tests.bench.weights import ModelShape, write_model

from slipstream.drafters.base import Plain
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import TokenTree

SMALL = ModelShape("small", n_vocab=3000, n_embd=64, n_layer=2, n_ff=128, n_head=2, n_head_kv=1)
EXACT = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "small.gguf"
    write_model(path, SMALL)
    return path


def test_a_made_model_has_the_promised_shape_and_loads(made: Path) -> None:
    header = read_header(made)
    assert (header.name, header.architecture, header.n_layer, header.n_embd) == ("small", "llama", 2, 64)
    matrices = SMALL.matrices()
    assert {t.name for t in header.tensors} == {*matrices, *SMALL.norms()}
    weights = sum(rows * columns for rows, columns in matrices.values())
    assert 0 <= made.stat().st_size - weights * 34 / 32 < 8192
    with opened(made, EXACT) as target:
        assert target.abilities.n_vocab == 3000
        assert target.abilities.n_layer == 2
        logits = target.evaluate(7).logits[0]
        assert np.isfinite(logits).all()
        assert logits.std() > 0.1


def test_the_two_models_of_the_benchmark_have_the_sizes_that_it_speaks_of() -> None:
    for shape, low, high in ((ModelShape.large(), 250e6, 400e6), (ModelShape.wide(), 5e6, 20e6)):
        size = sum(rows * columns for rows, columns in shape.matrices().values()) * 34 / 32
        assert low < size < high
        assert shape.n_vocab == 152_000


def test_a_model_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError, match="cannot write a model for the benchmark"):
        write_model(tmp_path / "missing" / "small.gguf", SMALL)


@pytest.mark.parametrize(("shape", "nodes", "leaves"), [(NODES_1, 1, 1), (NODES_4, 4, 2), (NODES_16, 16, 8)])
def test_the_script_drafts_its_shape_and_the_text_is_plain_decodings(
    made: Path, shape: TreeShape, nodes: int, leaves: int
) -> None:
    turns = len(shape.paths)
    with opened(made, EXACT) as target:
        prompt = ordinary(target, 40)
        text = run_loop(target, Plain(), Sampler(seed=3), prompt, 60).text
        drafter = ScriptedDrafter(shape, text, len(prompt), SMALL.n_vocab)
        run = run_loop(target, drafter, Sampler(seed=3), prompt, 2 * turns)
    assert (shape.nodes, shape.leaves) == (nodes, leaves)
    for step in run.steps:
        assert (len(step.draft.tree), step.draft.tree.leaves) == (nodes, leaves)
        assert len(step.draft.probs) == len(step.draft.sources) == nodes
    assert [step.path for step in run.steps] == [*shape.paths, *shape.paths]
    assert run.text == text[: len(run.text)]


def test_a_script_at_its_end_drafts_nothing(made: Path) -> None:
    with opened(made, EXACT) as target:
        prompt = ordinary(target, 8)
        run = run_loop(target, ScriptedDrafter(NODES_4, [1, 2], len(prompt), SMALL.n_vocab), Sampler(), prompt, 3)
    assert [len(step.draft.tree) for step in run.steps] == [4, 0, 0]


def test_paths_of_the_shapes_are_paths() -> None:
    for shape in (NODES_1, NODES_4, NODES_16):
        tree = TokenTree((0,) * shape.nodes, shape.parents)
        assert () in shape.paths
        for path in shape.paths:
            assert [tree.parents[node] for node in path] == [-1, *path][: len(path)]
    assert any(path and path[0] > 0 for path in NODES_16.paths)


def test_the_bare_loop_leaves_the_cache_as_it_was(made: Path) -> None:
    with opened(made, EXACT) as target:
        prompt = ordinary(target, 20)
        target.prefill(prompt)
        before = target.evaluate(5).logits.copy()
        target.rewind(20)
        assert target.bare([1, 2, 3]) > 0
        assert list(target.tokens) == prompt
        assert np.array_equal(target.evaluate(5).logits, before)


def test_clocks_count_what_they_wrap(made: Path) -> None:
    sampler = TimedSampler(seed=3)
    with opened(made, EXACT) as target:
        prompt = ordinary(target, 20)
        run = run_loop(target, Plain(), sampler, prompt, 5)
        same = run_loop(target, Plain(), Sampler(seed=3), prompt, 5)
    assert sampler.clock.calls == 5
    assert 0 < sampler.clock.seconds < run.seconds - run.decoding
    assert 0 < run.decoding < run.seconds
    assert run.text == same.text


def test_a_spread_is_median_and_range() -> None:
    spread = Spread.of([3.0, 1.0, 2.0, 10.0])
    assert (spread.median, spread.low, spread.high) == (2.5, 1.0, 10.0)
    assert spread.text(1, "x") == "2.5x (1.0..10.0)"


def test_ratios_are_taken_within_a_round(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {0.0: iter((9.0, 4.0, 4.0, 4.0)), 0.8: iter((9.0, 8.0, 8.0, 12.0))}
    bare = iter((9.0, 2.0, 4.0, 3.0))
    with opened(made, EXACT) as target:
        monkeypatch.setattr(target, "bare", lambda tokens: next(bare))

        def run(_target: object, _drafter: object, sampler: Sampler, *_rest: object) -> object:
            return type("Run", (), {"seconds": next(seconds[sampler.temperature])})

        monkeypatch.setattr("tests.bench.plain.run_loop", run)
        figures = compare_with_bare("small", 2_000_000, target, 16, 10, 3, lambda _line: None)
    assert figures.bare_ms == Spread(300.0, 200.0, 400.0)
    assert figures.greedy_ratio == Spread(0.75, 0.5, 1.0)
    assert figures.sampled_ratio == Spread(0.25, 0.25, 0.5)
    assert figures.greedy_added_us == Spread(1e5, 0.0, 2e5)
    assert (figures.file_mb, figures.rounds, figures.steps) == (2.0, 3, 10)
