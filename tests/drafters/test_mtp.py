"""MTP layers on tiny models whose guesses are known: always right, always wrong, right by the right feature alone."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.drafters import replies
from tests.drafters.changed_file import changed
from tests.drafters.mtp_file import ARCHITECTURES, LAYERS, TOKENS, WIDTH, Guesses, follower, write_mtp

from slipstream.app.engine.drafter_list import Drafters
from slipstream.drafters.autopilot.profile import Profile
from slipstream.drafters.base import Drafter, Plain, Step
from slipstream.drafters.feature_drafter import MTP, open_mtp
from slipstream.drafters.resources import Resources
from slipstream.models.errors import ModelFileError
from slipstream.models.gguf.architectures import without_mtp
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import MTP_HIDDEN, Abilities, History, Token

OPTIONS = ContextOptions(n_ctx=512, kv="f32", flash=False, threads=1)
FACTS = Abilities(TOKENS, 512, WIDTH, LAYERS - 1, 64, 8)

Open = Callable[..., LlamaTarget]


@pytest.fixture
def open_target(tmp_path: Path) -> Iterator[Open]:
    models: list[LlamaModel] = []
    targets: list[LlamaTarget] = []

    def open_one(architecture: str, guesses: Guesses, leaves: int = 1) -> LlamaTarget:
        models.append(LlamaModel(write_mtp(tmp_path / f"{architecture}.gguf", architecture, guesses)))
        targets.append(LlamaTarget(models[-1], replace(OPTIONS, max_leaves=leaves)))
        return targets[-1]

    yield open_one
    for target in targets:
        target.close()
    for model in models:
        model.close()


def prompt(length: int = 6) -> list[Token]:
    tokens = [5]
    while len(tokens) < length:
        tokens.append(follower(tokens[-1]))
    return tokens


def reply(
    target: LlamaTarget, drafter: Drafter, history: History, temperature: float = 0.0, deep: int = 4, seed: int = 3
) -> list[Step]:
    """Goes on with a text, without the step that its end cuts short."""
    sampler = Sampler(temperature=temperature, seed=seed)
    steps = replies.reply(target, drafter, history, sampler, 40, lambda _p, depth: depth <= deep)
    return [step for step in steps if not step.ended]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("guesses", "share"), [("right", 1.0), ("wrong", 0.0)])
def test_the_text_is_plain_decodings_whether_drafts_are_right_or_wrong(
    open_target: Open, architecture: str, temperature: float, guesses: Guesses, share: float
) -> None:
    target = open_target(architecture, guesses)
    plain, drafted = History(prompt()), History(prompt())
    with closing(open_mtp(target)) as drafter:
        reply(target, Plain(), plain, temperature)
        target.rewind(0)
        steps = reply(target, drafter, drafted, temperature)
    assert drafted.tokens == plain.tokens
    assert len(set(plain.tokens)) > 20
    count = sum(len(step.draft.tree) for step in steps)
    assert count > 4 and sum(len(step.path) for step in steps) == share * count


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_token_is_paired_with_the_feature_of_the_place_before_it(open_target: Open, architecture: str) -> None:
    """This layer hears the feature alone: one place off in the prompt or after a step, and it is always wrong."""
    target, history = open_target(architecture, "from the feature"), History(prompt())
    with closing(open_mtp(target)) as drafter:
        steps = reply(target, drafter, history, deep=1)
        assert all(len(step.path) == len(step.draft.tree) == 1 for step in steps) and len(steps) > 15
        history.tokens += [follower(history.tokens[-1])]  # a second turn, on top of the first
        steps = reply(target, drafter, history, deep=2)
    assert all(step.path[:1] == (0,) and len(step.draft.tree) > 1 for step in steps[1:]) and len(steps) > 10
    assert all(now == follower(before) for before, now in zip(history.tokens, history.tokens[1:], strict=False))


def test_a_target_that_takes_leaves_gets_trees(open_target: Open) -> None:
    target, plain, drafted = open_target("glm4moe", "from the feature", 4), History(prompt()), History(prompt())
    with closing(open_mtp(target)) as drafter:
        reply(target, Plain(), plain, 1.5)
        target.rewind(0)
        steps = reply(target, drafter, drafted, 1.5)
    assert drafted.tokens == plain.tokens
    assert max(step.draft.tree.leaves for step in steps) == 4
    assert 0 < sum(len(step.path) for step in steps) < sum(step.draft.tree.depth for step in steps)


def test_a_long_prompt_a_rewind_and_an_unheard_prefix(open_target: Open) -> None:
    target, long = open_target("glm4moe", "from the feature"), prompt(300)
    with closing(open_mtp(target)) as drafter:
        steps = reply(target, drafter, History(list(long)), deep=1)
        assert steps and all(len(step.path) == 1 for step in steps)
        steps = reply(target, drafter, History(long[:100]), deep=1)
        assert [len(step.draft.tree) for step in steps[:2]] == [0, 1]  # all of it is in the cache: nothing was heard
        assert all(len(step.path) == 1 for step in steps[1:])
        reply(target, Plain(), History(long[:200]))
        steps = reply(target, drafter, History(long[:260]), deep=1)
        assert steps and all(len(step.path) == 1 for step in steps)


def test_what_it_lacks_is_said(open_target: Open, tmp_path: Path) -> None:
    open_target("glm4moe", "right")
    path = tmp_path / "glm4moe.gguf"
    assert MTP.lacks(Resources(FACTS, header=read_header(path))) == ""
    assert MTP.lacks(Resources(FACTS)) == "it needs MTP layers, and this model has none"
    bundled = Path(__file__).parents[2] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
    assert MTP.lacks(Resources(FACTS, header=read_header(bundled))) == "it needs MTP layers, and this model has none"


@pytest.mark.parametrize(
    ("keys", "tensors", "reason"),
    [
        ({"nextn_predict_layers": 2}, {}, "has 2 MTP layers"),
        ({"nextn_predict_layers": 0}, {}, "this model has none"),
        ({}, {f"blk.{LAYERS - 1}.nextn.eh_proj.weight": None}, "leaves out"),
        ({}, {f"blk.{LAYERS - 1}.ffn_gate_inp.weight": None}, "leaves out"),
    ],
)
def test_a_layer_that_would_end_the_process_is_left_alone(tmp_path: Path, keys: Any, tensors: Any, reason: str) -> None:
    good = write_mtp(tmp_path / "good.gguf", "glm4moe")
    bad = changed(good, tmp_path / "bad.gguf", {f"glm4moe.{key}": value for key, value in keys.items()}, tensors)
    assert reason in without_mtp(read_header(bad))
    header = read_header(good)
    wide = replace(header, metadata={**header.metadata, "glm4moe.embedding_length_out": 999})
    assert "features of another width" in without_mtp(wide)


def test_a_file_without_its_mtp_layer_is_a_plain_model(tmp_path: Path) -> None:
    """Many conversions announce the layer and leave it out; asking llama.cpp for it would end the process."""
    good = write_mtp(tmp_path / "good.gguf", "glm4moe")
    names = [tensor.name for tensor in read_header(good).tensors if tensor.name.startswith(f"blk.{LAYERS - 1}.")]
    model = LlamaModel(changed(good, tmp_path / "bare.gguf", tensors=dict.fromkeys(names)))
    with closing(LlamaTarget(model, OPTIONS)) as target:
        assert not model.mtp and "leaves out" in MTP.lacks(Resources(target.abilities, header=model.header))
        history = History(prompt())
        reply(target, Plain(), history)
        assert history.tokens == prompt(46)
    model.close()


@pytest.mark.parametrize("architecture", ["hy_v3", "step35", "mimo2"])
def test_of_several_layers_the_first_one_drafts(tmp_path: Path, architecture: str) -> None:
    good = write_mtp(tmp_path / "good.gguf", architecture)
    keys = {f"{architecture}.block_count": LAYERS + 1, f"{architecture}.nextn_predict_layers": 2}
    second = {name.replace(f"blk.{LAYERS - 1}.", f"blk.{LAYERS}."): values for name, values in layer_of(good).items()}
    both = changed(good, tmp_path / "both.gguf", keys, second)
    with closing(LlamaModel(both)) as model, closing(LlamaTarget(model, OPTIONS)) as target:
        assert model.mtp and target.abilities.n_layer == LAYERS - 1
        plain, drafted = History(prompt()), History(prompt())
        reply(target, Plain(), plain, 0.8)
        target.rewind(0)
        with closing(open_mtp(target)) as drafter:
            steps = reply(target, drafter, drafted, 0.8)
    assert drafted.tokens == plain.tokens
    assert sum(len(step.path) for step in steps) > 20 and all(len(step.path) == step.draft.tree.depth for step in steps)


WAYS = ("auto", "mtp", "lookup+mtp", "lookup|mtp")


def written(path: Path, way: str = "none") -> tuple[list[Token], dict[str, str]]:
    with closing(LlamaModel(path)) as model, closing(LlamaTarget(model, OPTIONS)) as target:
        history = History(prompt())
        resources = Resources(target.abilities, llama=target, header=model.header)
        with closing(Drafters(resources, target, 1.0, Profile(None, ""))) as drafters:
            reply(target, drafters.get(way), history, 0.8)
            return history.tokens, drafters.new_failures()


def layer_of(path: Path) -> dict[str, Any]:
    header = read_header(path)
    found = [tensor for tensor in header.tensors if tensor.name.startswith(f"blk.{LAYERS - 1}.")]
    return {tensor.name: read_tensor(header, tensor) for tensor in found}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_layer_is_named_and_the_text_stays(tmp_path: Path, architecture: str, value: float) -> None:
    good = write_mtp(tmp_path / "good.gguf", architecture)
    filled = {name: np.full_like(values, value) for name, values in layer_of(good).items()}
    broken = changed(good, tmp_path / "broken.gguf", tensors=filled)
    plain, _ = written(broken)
    assert len(plain) > 30
    for way in WAYS:
        assert written(good, way) == (plain, {}), way
        assert written(broken, way) == (plain, {"mtp": "what it computes is not a number"}), way


@pytest.mark.parametrize("name", ["nextn.eh_proj", "nextn.enorm", "attn_q"])
def test_a_layer_of_another_shape_is_refused_with_the_model(tmp_path: Path, name: str) -> None:
    """The layer is a part of the model's file, and llama.cpp loads all of it or nothing."""
    good, tensor = write_mtp(tmp_path / "good.gguf", "glm4moe"), f"blk.{LAYERS - 1}.{name}.weight"
    bad = changed(good, tmp_path / "bad.gguf", tensors={tensor: np.concatenate([layer_of(good)[tensor]] * 2)})
    for way in ("none", *WAYS):
        with pytest.raises(ModelFileError, match=f"{tensor}' has wrong shape"):
            written(bad, way)


@pytest.mark.parametrize("architecture", ["deepseek2", "llama", "qwen35"])
def test_other_architectures_must_have_what_their_graphs_demand(tmp_path: Path, architecture: str) -> None:
    header = read_header(write_mtp(tmp_path / "m.gguf", "glm4moe"))
    found = {key.replace("glm4moe.", f"{architecture}."): value for key, value in header.metadata.items()}
    other = type(header)(**{**vars(header), "architecture": architecture, "metadata": found})
    reason = {"deepseek2": "without latent attention", "llama": "the architecture llama", "qwen35": ""}[architecture]
    assert reason in without_mtp(other) and bool(reason) == bool(without_mtp(other))
    latent = ("q_lora_rank", "kv_lora_rank", "key_length_mla", "value_length_mla")
    found |= {f"{architecture}.attention.{name}": 8 for name in latent}
    assert (without_mtp(other) == "") == (architecture != "llama")


def test_asking_for_the_feature_changes_no_logits(open_target: Open) -> None:
    target = open_target("qwen35", "right")
    rows = []
    for points in (frozenset[int](), frozenset({MTP_HIDDEN}), frozenset[int]()):
        target.request(points)
        target.rewind(0)
        target.prefill(prompt(20))
        evaluation = target.evaluate(prompt(21)[-1])
        rows.append(evaluation.logits.copy())
        assert set(evaluation.hidden) == points
        target.keep(())
    assert all(np.array_equal(rows[0], each) for each in rows)
