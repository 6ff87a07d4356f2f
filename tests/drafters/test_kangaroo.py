"""Drafter ``kangaroo``: its two early exits, the rule that tunes the second one, and the text it leaves as it is."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.drafters.replies import reply
from tests.models.conftest import small_model
from tests.models.fake_target import FakeTarget

from slipstream.drafters import registry
from slipstream.drafters.base import Draft, Drafter, ShouldExtend, Step
from slipstream.drafters.kangaroo import Kangaroo, Sureness
from slipstream.drafters.resources import Resources
from slipstream.models.errors import UsageError
from slipstream.models.gguf.reader import read_header
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History

GREEDY = Sampler(temperature=0.0)
BUNDLED = Path(__file__).parents[2] / "models" / "bundled"
TARGET, ADAPTER = BUNDLED / "slipstream-mini-q8_0.gguf", BUNDLED / "slipstream-mini-kangaroo.gguf"


def four(_probability: float, depth: int) -> bool:
    return depth <= 4


def drafter(sure: float, n_ctx: int = 4096, max_leaves: int = 16, max_rows: int = 64) -> tuple[Kangaroo, FakeTarget]:
    model = FakeTarget(n_ctx=n_ctx)
    abilities = replace(model.abilities, max_leaves=max_leaves, max_rows=max_rows)
    return Kangaroo(model, abilities, sure), model


def draft_of(some: Kangaroo, tokens: list[int], should_extend: ShouldExtend = four, sampler: Sampler = GREEDY) -> Draft:
    history = History(list(tokens))
    some.begin(history)
    return some.draft(history, should_extend, sampler)


def test_it_drafts_what_its_model_would_draw() -> None:
    for sampler in (GREEDY, Sampler(temperature=0.8, seed=5)):
        some, _ = drafter(sure=0.0)
        draft = draft_of(some, [1, 2, 3], sampler=sampler)
        alone, history = FakeTarget(), History([1, 2, 3])
        alone.prefill([1, 2])
        for _ in range(4):
            token = sampler.pick(alone.evaluate(history.tokens[-1]).logits[0], history)
            alone.keep(())
            history.tokens.append(token)
        assert list(draft.tree.tokens) == history.tokens[3:] and draft.sources == ("kangaroo",) * 4
        assert all(0 < prob <= 1 for prob in draft.probs)


def test_the_unsure_token_is_in_the_draft_and_is_the_last_one() -> None:
    stopped = 0
    for seed in range(30):
        whole, _ = drafter(sure=0.0, max_leaves=1)
        cut, model = drafter(sure=0.5, max_leaves=1)
        long, short = draft_of(whole, [2, seed, 3]), draft_of(cut, [2, seed, 3])
        unsure = next((at for at, prob in enumerate(long.probs) if prob < 0.5), 3)
        assert short.tree.tokens == long.tree.tokens[: unsure + 1]
        assert model.decodes == unsure + 1  # its pass is the last one
        stopped += unsure < 3
    assert stopped > 0


def test_runners_up_stand_beside_the_unsure_token() -> None:
    sampler = Sampler(temperature=1.0, seed=2)
    for seed in range(10):
        some, _ = drafter(sure=0.5)
        draft = draft_of(some, [2, seed, 3], sampler=sampler)
        tree = draft.tree
        chain = [tree.tokens[node] for node in range(len(tree)) if tree.depths[node] < tree.depth]
        model, history = FakeTarget(), History([2, seed, 3, *chain])
        model.prefill(history.tokens[:-1])
        row = model.evaluate(history.tokens[-1]).logits[0]
        ranked, shares = sampler.rank(row, History([2, seed, 3]), chain, 4)
        last = [node for node in range(len(tree)) if tree.depths[node] == tree.depth]
        if len(last) > 1:
            assert {tree.tokens[node]: draft.probs[node] for node in last} == dict(zip(ranked, shares, strict=True))
            assert {tree.parents[node] for node in last} == {len(chain) - 1 if chain else ROOT}
            return
    pytest.fail("it was never unsure")


def test_runners_up_fit_what_the_target_takes_and_what_is_worth_it() -> None:
    def leaves(should_extend: ShouldExtend = four, **limits: int) -> list[int]:
        found = []
        for seed in range(10):
            some, _ = drafter(1.1, **limits)  # unsure of everything
            draft = draft_of(some, [2, seed, 3], should_extend)
            assert draft.tree.depth == 1
            found.append(draft.tree.leaves)
        return found

    assert set(leaves()) == {4} and set(leaves(max_leaves=2)) == {2} and set(leaves(max_leaves=1)) == {1}
    assert set(leaves(max_rows=3)) == {2} and set(leaves(max_rows=2)) == {1}
    assert set(leaves(lambda probability, _depth: probability > 0.5)) == {1}
    assert len(set(leaves(lambda probability, _depth: probability > 0.1))) > 1


def tuned(accepted: Callable[[float], float], price: float, pairs: int = 3000, start: float = 0.6) -> float:
    """Where the bound goes if a token of probability p is accepted with probability ``accepted(p)``."""
    sureness, rng = Sureness(start), np.random.default_rng(4)
    for probability in rng.random(pairs):
        sureness.add(float(probability), bool(rng.random() < accepted(probability)), True)
        sureness.settle(price)
    return sureness.bound


def test_the_bound_goes_where_going_on_pays() -> None:
    assert tuned(lambda p: p, 0.5) > 0.9  # half of all are accepted: p f = c at p = 1
    assert abs(tuned(lambda p: p, 0.25) - 0.5) < 0.12  # p / 2 = 0.25
    assert abs(tuned(lambda p: p, 0.1) - 0.2) < 0.12
    assert tuned(lambda _p: 1.0, 0.2) < 0.1  # always right: being unsure says nothing
    assert tuned(lambda _p: 0.0, 0.2) > 0.9
    assert 0.6 < tuned(lambda p: float(p > 0.7), 0.2) < 0.75  # an edge is found from either side
    assert 0.6 < tuned(lambda p: float(p > 0.7), 0.2, start=0.95) < 0.75
    # First tokens are often wrong, those after an accepted one seldom: to go on pays.
    sureness = Sureness(0.9)
    for at in range(1000):
        sureness.add(0.55, at % 2 == 0, False)
        if at % 2 == 0:
            sureness.add(0.55, at % 20 > 0, True)
        sureness.settle(0.4)
    assert sureness.bound < 0.56


def test_a_lower_price_lets_it_draft_longer() -> None:
    """On line, against a target of the same family: what the budget asks for decides the bound."""

    def bound(least: float) -> float:
        target, model = FakeTarget(n_vocab=24, order=1), FakeTarget(n_vocab=24, order=1, blur=0.3)
        some = Kangaroo(model, target.abilities)
        run(some, target, Sampler(temperature=0.8, seed=1), lambda p, depth: p >= least and depth <= 8, 400)
        return some.sureness.bound

    assert bound(0.1) < bound(0.5)


def run(
    some: Drafter, target: FakeTarget | LlamaTarget, sampler: Sampler, should_extend: ShouldExtend, size: int
) -> list[Step]:
    return reply(target, some, History([3, 1, 4, 1, 5, 9, 2, 6]), sampler, size, should_extend)


def text_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.fixture(scope="module")
def target() -> Iterator[LlamaTarget]:
    options = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True, threads=1)
    with closing(LlamaModel(TARGET)) as model, closing(LlamaTarget(model, options)) as context:
        yield context


def parts_of(target: LlamaTarget, folder: Path | None) -> Resources:
    header = read_header(TARGET)
    return Resources(target.abilities, heads={"kangaroo": ADAPTER}, llama=target, folder=folder, header=header)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_trees_do_not_change_the_bundled_models_text(target: LlamaTarget, tmp_path: Path, temperature: float) -> None:
    parts = parts_of(target, tmp_path)
    accepted = rejected = beside = 0
    with closing(registry.make("kangaroo", parts)) as some:
        for seed in range(4):
            sampler = Sampler(temperature=temperature, seed=seed)
            plain = run(registry.make("none", parts), target, sampler, four, 40)
            steps = run(some, target, sampler, lambda p, depth: p >= 0.05 and depth <= 6, 40)
            assert text_of(steps) == text_of(plain)
            accepted += sum(len(step.path) for step in steps)
            rejected += sum(len(step.draft.tree) - len(step.path) for step in steps)
            beside += sum(any(step.draft.tree.first_leaves[node] for node in step.path) for step in steps)
    assert accepted > 0 and rejected > 0 and (beside > 0 or not temperature)


def test_the_cut_is_kept_in_the_folder_or_lives_as_long_as_the_drafter(
    target: LlamaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(registry.make("kangaroo", parts_of(target, tmp_path / "derived"))):
        assert len(list((tmp_path / "derived").iterdir())) == 1
    assert len(list((tmp_path / "derived").iterdir())) == 1
    passing = tmp_path / "passing"
    passing.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(passing))
    with closing(registry.make("kangaroo", parts_of(target, None))) as some:
        assert len(list(passing.rglob("*.gguf"))) == 1
        run(some, target, GREEDY, four, 8)
    assert list(passing.iterdir()) == []


def test_what_it_lacks_is_said_before_the_first_token(target: LlamaTarget, tmp_path: Path) -> None:
    parts = parts_of(target, tmp_path)
    assert registry.why_not("kangaroo", parts) == ""
    assert registry.why_not("kangaroo", replace(parts, heads={})) == "it needs kangaroo heads, and this model has none"
    other = tmp_path / "other.gguf"
    other.write_bytes(small_model().text("general.architecture", "gemma3").bytes())
    with pytest.raises(
        UsageError, match=r"does not work with this model: only models of .* and this one is 'gemma3'; medusa"
    ):
        registry.make("kangaroo", replace(parts, header=read_header(other)))
    chains = replace(parts, abilities=replace(parts.abilities, max_leaves=0))
    assert "take back tokens" in registry.why_not("kangaroo", chains)
