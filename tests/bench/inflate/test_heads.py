"""Inflated heads and draft models: they fit the inflated target, draft what the small ones draft, and cost more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from tests.bench.inflate.heads import inflated_heads
from tests.bench.inflate.model import inflated_model, model_growth
from tests.bench.inflate.shapes import Shape
from tests.models.requantize import requantize

from slipstream.app.engine.loop import generate
from slipstream.app.engine.stopping import StopRules
from slipstream.drafters import registry
from slipstream.drafters.base import Step
from slipstream.drafters.medusa import MedusaHeads
from slipstream.drafters.resources import Resources
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.block_head import block_head, unfit_block
from slipstream.models.heads.file import read_heads
from slipstream.models.heads.matching_heads import matching_heads
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import BlockContext
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import EMPTY_TREE, Floats, History

BUNDLED = Path(__file__).parents[3] / "models" / "bundled"
TARGET, DRAFT = BUNDLED / "slipstream-mini-q8_0.gguf", BUNDLED / "slipstream-mini-draft-q8_0.gguf"
HEADS = {
    "medusa": BUNDLED / "slipstream-mini-medusa.gguf",
    "kangaroo": BUNDLED / "slipstream-mini-kangaroo.gguf",
    "space": BUNDLED / "slipstream-mini-space.gguf",
    "eagle3": BUNDLED / "slipstream-mini-eagle3-q8_0.gguf",
    "dflash": BUNDLED / "slipstream-mini-dflash-q8_0.gguf",
}
SHAPE = Shape("4x", 1024, 17, 16, 4, 64, 768, 6000)
DRAFT_SHAPE = Shape("draft 4x", 512, 5, 8, 4, 64, 768, 6000)
STRICT = ContextOptions(n_ctx=256, kv="q8_0", flash=True, same_text=True, threads=1)
PROMPT = "<|im_start|>user\nTell me about the sea.<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True)
class Family:
    """A target, its draft model and its heads."""

    target: Path
    draft: Path
    heads: Mapping[str, Path]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("small")
    for source, name in ((TARGET, "target"), (DRAFT, "draft")):
        requantize(source, folder / f"{name}.gguf", "q8_0")
    return Family(folder / "target.gguf", folder / "draft.gguf", HEADS)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("large")
    target = read_header(TARGET)
    inflated_model(target, SHAPE, "Q8_0").write(folder / "target.gguf")
    inflated_model(read_header(DRAFT), DRAFT_SHAPE, "Q8_0").write(folder / "draft.gguf")
    for name, path in HEADS.items():
        inflated_heads(path, target, model_growth(target, SHAPE)).write(folder / f"{name}.gguf")
    return Family(folder / "target.gguf", folder / "draft.gguf", {name: folder / f"{name}.gguf" for name in HEADS})


def steps_of(family: Family, drafter: str, folder: Path) -> list[Step]:
    """A few steps of a reply, and what was drafted in each."""
    with ExitStack() as opened:
        model = opened.enter_context(closing(LlamaModel(family.target)))
        target = opened.enter_context(closing(LlamaTarget(model, STRICT)))
        small = opened.enter_context(closing(LlamaModel(family.draft)))
        draft = opened.enter_context(closing(LlamaTarget(small, ContextOptions(n_ctx=256, max_leaves=4, threads=1))))
        parts = Resources(target.abilities, draft, family.heads, target, folder, header=model.header)
        assert registry.why_not(drafter, parts) == ""
        made = opened.enter_context(closing(registry.make(drafter, parts)))
        target.use_threads(1)
        target.request(made.needs.hidden)
        history = History(model.tokenize(PROMPT, True))
        made.begin(history)
        target.prefill(history.tokens[:-1], lambda chunk: made.on_prefill(chunk.tokens, chunk.hidden))
        rules = StopRules(frozenset(), 200, 0, (), lambda _: b"")
        sampler, steps = Sampler(temperature=0.8, seed=3), 40 if drafter == "recycle" else 16  # it needs repetition
        return list(islice(generate(target, made, sampler, history, _three, rules, lambda: False), steps))


def _three(_probability: float, depth: int) -> bool:
    return depth <= 3


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["medusa", "kangaroo", "space", "eagle3", "draft", "recycle"])
def test_what_is_drafted_and_accepted_is_what_the_small_family_does(
    small: Family, large: Family, tmp_path: Path, drafter: str
) -> None:
    before, after = steps_of(small, drafter, tmp_path), steps_of(large, drafter, tmp_path)
    assert [step.draft.tree for step in before] == [step.draft.tree for step in after]
    assert [(step.path, step.tokens) for step in before] == [(step.path, step.tokens) for step in after]
    assert any(step.draft.tree.drafted for step in before)
    for mine, theirs in zip(before, after, strict=True):
        assert np.allclose(mine.draft.probs, theirs.draft.probs, atol=1e-4)


def block_of(family: Family) -> Floats:
    """The logits of a DFlash block after the prompt, of the small vocabulary."""
    header = read_header(family.heads["dflash"])
    with (
        closing(LlamaModel(family.target)) as model,
        closing(LlamaTarget(model, STRICT)) as target,
        closing(LlamaModel(family.heads["dflash"])) as own,
        closing(BlockContext(target, own, block_head(header))) as head,
    ):
        assert unfit_block(header, target.abilities, model.header) == ""
        target.request(frozenset(head.head.layers))
        *text, last = model.tokenize(PROMPT, True)
        chunks: list[Floats] = []
        target.prefill(
            text, lambda chunk: chunks.append(np.hstack([chunk.hidden[layer] for layer in head.head.layers]))
        )
        head.inject(np.concatenate(chunks))
        return head.draft(last).logits[:, :4096].copy()


def test_a_block_of_a_dflash_head_has_the_small_ones_logits(small: Family, large: Family) -> None:
    before, after = block_of(small), block_of(large)
    assert before.std() > 0.5
    assert np.abs(after - before).max() < 0.01 * np.abs(before).max()


def test_the_heads_name_the_inflated_target_and_fit_it(large: Family) -> None:
    header = read_header(large.target)
    assert matching_heads(header, large.heads.values()) == dict(large.heads)
    for name in ("medusa", "kangaroo", "space"):
        heads = read_heads(large.heads[name], header)  # checks every size and value
        assert heads.info.target_name == "Slipstream mini widened to 4x"
    assert read_heads(large.heads["kangaroo"], header).info.settings["exit_layer"] == 17 // 14
    with pytest.raises(SlipstreamError, match="trained for"):
        read_heads(HEADS["medusa"], header)


def test_heads_are_as_large_as_heads_of_that_width(large: Family) -> None:
    width = SHAPE.n_embd
    shapes = {name: {t.name: t.shape for t in read_header(path).tensors} for name, path in large.heads.items()}
    assert shapes["medusa"]["head.0.0.weight"] == (width, width)
    small_rows = next(t for t in read_header(HEADS["medusa"]).tensors if t.name == "output.weight").shape[1]
    assert shapes["medusa"]["output.weight"] == (width, small_rows * SHAPE.n_vocab // 4096)
    assert shapes["kangaroo"]["attn_q.weight"] == (width, SHAPE.n_head * SHAPE.head)
    assert shapes["eagle3"]["fc.weight"] == (3 * width, width)
    assert shapes["eagle3"]["blk.0.attn_q.weight"] == (2 * width, SHAPE.n_head * SHAPE.head)
    assert shapes["eagle3"]["blk.0.ffn_gate.weight"] == (width, SHAPE.n_ff)
    assert shapes["space"]["masks"][0] == width
    assert shapes["dflash"]["fc.weight"] == (3 * width, width)
    assert shapes["dflash"]["blk.1.attn_q.weight"] == (width, SHAPE.n_head * SHAPE.head)
    assert shapes["dflash"]["blk.1.attn_q_norm.weight"] == (64,)


@pytest.mark.parametrize("rows", [SHAPE.n_vocab, 4096], ids=["added rows", "as many rows"])
def test_added_rows_of_medusas_vocabulary_have_no_probability_at_all(tmp_path: Path, rows: int) -> None:
    rng, path = np.random.default_rng(2), tmp_path / "medusa.gguf"
    target = read_header(TARGET)
    inflated_heads(HEADS["medusa"], target, model_growth(target, replace(SHAPE, n_vocab=rows))).write(path)
    with (
        closing(MedusaHeads(HEADS["medusa"], lambda: 1, 4096)) as small,
        closing(MedusaHeads(path, lambda: 1, 4096)) as wide,
    ):
        for _ in range(3):
            state = rng.normal(0, 2, 256).astype(np.float32)
            ids, probs = small.best(state)
            many, shares = wide.best(np.pad(state, (0, SHAPE.n_embd - 256)))
            assert (shares[many >= 4096] == 0).all()
            count = ids.shape[1]
            assert np.allclose(probs, shares[:, :count], atol=1e-6) and (ids[:, :8] == many[:, :8]).all()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    inflated_model(read_header(TARGET), Shape("other", 512, 15, 8, 4, 64, 768, 5000), "Q8_0").write(tmp_path / "o.gguf")
    yield tmp_path / "o.gguf"


def test_heads_of_another_model_are_refused(other: Path) -> None:
    header = read_header(other)
    for path in HEADS.values():
        with pytest.raises(SlipstreamError, match="trained for"):
            inflated_heads(path, header, model_growth(read_header(TARGET), SHAPE))


def test_the_inflated_draft_model_has_the_targets_vocabulary(large: Family) -> None:
    target, draft = read_header(large.target), read_header(large.draft)
    assert (draft.n_vocab, draft.n_rows) == (target.n_vocab, target.n_rows)
    with closing(LlamaModel(large.draft)) as model, closing(LlamaTarget(model, STRICT)) as opened:
        opened.prefill(model.tokenize(PROMPT, True))
        assert opened.evaluate(1, EMPTY_TREE).logits.shape == (1, target.n_vocab)
