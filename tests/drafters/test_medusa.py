"""Medusa: the heads against numpy, the place that each head guesses, the tree against a search, the same text."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.drafters.replies import always, ask, reply

from slipstream.drafters.base import NO_DRAFT, Draft, Drafter, Plain, ShouldExtend, Step
from slipstream.drafters.medusa import METHOD, Medusa, MedusaHeads, rank_accuracies, unfit
from slipstream.drafters.resources import Resources
from slipstream.models.errors import ModelFileError, NotANumberError
from slipstream.models.gguf.reader import read_header
from slipstream.models.heads.file import HeadsInfo, Kind, read_heads, write_heads
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler, gumbel
from slipstream.models.types import LAST_HIDDEN, Abilities, Evaluation, Floats, History, Token

BUNDLED = Path(__file__).parents[2] / "models" / "bundled"
TARGET = BUNDLED / "slipstream-mini-q8_0.gguf"
HEADS = BUNDLED / "slipstream-mini-medusa.gguf"
STRICT = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True, threads=1)
PROMPTS = ["Tell me about the sea", "Write a list of ten animals.", "Tell me a story about a small fox."]
WIDTH, ROWS, VOCABULARY = 64, 50, 90
ABILITIES = Abilities(VOCABULARY, n_ctx=512, n_embd=WIDTH, n_layer=2, max_rows=64, max_leaves=16)
GREEDY = Sampler(temperature=0)
TOLERANCE: dict[Kind, float] = {"q8_0": 0.15, "f16": 4e-3, "f32": 1e-4}
"""Of a probability, relative: ggml rounds states to the type of the matrix; two or more matrices follow each other."""

Tensors = dict[str, NDArray[Any]]


def random_heads(
    shared: bool = True,
    cut: bool = True,
    layers: int = 1,
    heads: int = 3,
    width: int = WIDTH,
    n_vocab: int = VOCABULARY,
) -> Tensors:
    rng = np.random.default_rng(5)
    rows = ROWS if cut else n_vocab
    found: Tensors = {"output.ids": rng.permutation(n_vocab)[:rows].astype(np.int32)} if cut else {}
    for name in ["output.weight"] if shared else [f"head.{head}.output.weight" for head in range(heads)]:
        found[name] = rng.normal(size=(rows, width), scale=width**-0.5).astype(np.float32)
    for head, layer in product(range(heads), range(layers)):
        found[f"head.{head}.{layer}.weight"] = rng.normal(size=(width, width), scale=0.5 * width**-0.5).astype(
            np.float32
        )
        found[f"head.{head}.{layer}.bias"] = rng.normal(size=width, scale=0.5).astype(np.float32)
    return found


def saved(path: Path, tensors: Tensors, kind: Kind = "q8_0", target: str = "0" * 64, **settings: Any) -> Path:
    info = HeadsInfo("medusa", target, "any", "corpus", (), 0, MappingProxyType(settings))
    write_heads(path, info, tensors, kind)
    return path


def by_numpy(path: Path, state: Floats) -> Floats:
    """What each head says of each token of the vocabulary; 0 of tokens that it does not know."""
    tensors = read_heads(path).tensors
    said, head = [], 0
    while f"head.{head}.0.weight" in tensors:
        x, layer = state, 0
        while f"head.{head}.{layer}.weight" in tensors:
            y = tensors[f"head.{head}.{layer}.weight"] @ x + tensors[f"head.{head}.{layer}.bias"]
            x, layer = x + y / (1 + np.exp(-y)), layer + 1
        own = f"head.{head}.output.weight"
        scores = tensors[own if own in tensors else "output.weight"] @ x
        shares = np.exp(scores - scores.max())
        row = np.zeros(VOCABULARY, np.float32)
        row[tensors.get("output.ids", np.arange(VOCABULARY))] = shares / shares.sum()
        said.append(row)
        head += 1
    return np.stack(said)


@pytest.mark.parametrize("kind", list(TOLERANCE))
@pytest.mark.parametrize(
    ("shared", "cut", "layers"), [(True, True, 1), (True, False, 2), (False, True, 3), (False, False, 1)]
)
def test_heads_say_what_numpy_says(tmp_path: Path, kind: Kind, shared: bool, cut: bool, layers: int) -> None:
    path = saved(tmp_path / "heads.gguf", random_heads(shared, cut, layers), kind)
    with closing(MedusaHeads(path, lambda: 1, kept=6)) as heads, closing(MedusaHeads(path, lambda: 1, 10**9)) as whole:
        assert (heads.count, heads.kept, whole.kept) == (3, 6, ROWS if cut else VOCABULARY)
        for seed in range(4):
            state = np.random.default_rng(seed).standard_normal(WIDTH, np.float32)
            tokens, said = heads.best(state)
            wanted = by_numpy(path, state)
            assert np.allclose(said, np.take_along_axis(wanted, tokens, axis=1), rtol=TOLERANCE[kind])
            assert np.allclose(said, -np.sort(-wanted, axis=1)[:, :6], rtol=TOLERANCE[kind])
            assert (np.diff(said, axis=1) <= 0).all() and all(len(set(row)) == 6 for row in tokens.tolist())
            every, shares = whole.best(state)
            assert np.allclose(shares.sum(axis=1), 1, atol=1e-5) and np.array_equal(every[:, :6], tokens)


def test_heads_that_do_not_fit_are_refused_in_words(tmp_path: Path) -> None:
    path = saved(tmp_path / "heads.gguf", random_heads())
    parts = Resources(ABILITIES, heads={"medusa": path}, llama=SimpleNamespace())  # type: ignore[arg-type]
    assert METHOD.lacks(parts) == unfit(path, ABILITIES) == ""
    assert "64 numbers, and this model's have 32" in unfit(path, replace(ABILITIES, n_embd=32))
    assert f"{VOCABULARY - 10} " in unfit(path, replace(ABILITIES, n_vocab=VOCABULARY - 10)) + " "
    assert "space heads" in unfit(BUNDLED / "slipstream-mini-space.gguf", ABILITIES)
    with pytest.raises(ModelFileError):  # the registry words it
        METHOD.lacks(replace(parts, heads={"medusa": TARGET}))
    assert METHOD.lacks(replace(parts, heads={})).endswith("slipstream drafters train medusa -m MODEL trains them")
    assert METHOD.lacks(replace(parts, llama=None))


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "heads.gguf", random_heads(), "f32")
    header = read_header(path)
    for tensor in header.tensors:
        if tensor.name == "output.ids":
            continue
        whole = bytearray(path.read_bytes())
        place = header.data_offsets[0] + tensor.offset + tensor.nbytes // 2
        whole[place : place + 4] = np.float32(np.nan).tobytes()
        damaged = tmp_path / "damaged.gguf"
        damaged.write_bytes(whole)
        with pytest.raises(ModelFileError, match="not all numbers"):
            MedusaHeads(damaged, lambda: 1, 8)


def test_rank_accuracies_come_from_the_file_or_from_the_authors() -> None:
    info = HeadsInfo("medusa", "0" * 64, "any", "corpus", (), 0)
    measured = replace(info, settings={"rank_accuracies": [0.5, 0.25, 0.4, 0.125]})
    assert rank_accuracies(measured, 2).tolist() == [[0.5, 0.25], pytest.approx([0.4, 0.125])]
    published = rank_accuracies(info, 7)
    assert published.shape == (7, 10) and published[0, 0] == pytest.approx(0.56)
    assert published[:5, :5].sum(axis=1) == pytest.approx([0.78, 0.563, 0.417, 0.34, 0.3])
    assert np.array_equal(published[6], published[4]) and (np.diff(published, axis=1) < 0).all()
    assert np.array_equal(rank_accuracies(measured, 3), rank_accuracies(info, 3))  # a list that does not divide


class Said:
    def __init__(self, tokens: list[list[int]], said: list[list[float]]) -> None:
        self.tokens, self.said = np.array(tokens, np.int32), np.array(said, np.float32)
        self.count, self.kept = self.tokens.shape
        self.info = HeadsInfo("medusa", "0" * 64, "any", "corpus", (), 0)
        self.asked = 0

    def best(self, state: Floats) -> tuple[NDArray[np.int32], Floats]:
        self.asked += 1
        return self.tokens, self.said

    def close(self) -> None:
        pass


def lists(depths: int, ranks: int, seed: int) -> Said:
    rng = np.random.default_rng(seed)
    tokens = [rng.permutation(VOCABULARY)[:ranks].tolist() for _ in range(depths)]
    return Said(tokens, [sorted(rng.dirichlet(np.full(ranks + 4, 0.4))[:ranks], reverse=True) for _ in range(depths)])


def ready(heads: Said, abilities: Abilities = ABILITIES, nodes: int = 63) -> Medusa:
    drafter = Medusa(heads, abilities, nodes)  # type: ignore[arg-type]
    drafter.on_prefill([1], {LAST_HIDDEN: np.zeros((1, WIDTH), np.float32)})
    return drafter


def paths(draft: Draft) -> dict[tuple[Token, ...], float]:
    found: dict[tuple[Token, ...], float] = {(): 1.0}
    above: list[tuple[Token, ...]] = []
    for token, parent, prob in zip(draft.tree.tokens, draft.tree.parents, draft.probs, strict=True):
        path = above[parent] if parent >= 0 else ()
        above.append((*path, token))
        found[above[-1]] = found[path] * prob
    del found[()]
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 5, 16, 63])
def test_the_tree_has_the_most_probable_paths(seed: int, nodes: int) -> None:
    heads = lists(4, 6, seed)
    every: dict[tuple[Token, ...], float] = {}
    for depth in range(1, 5):
        for ranks in product(range(6), repeat=depth):
            tokens = tuple(int(heads.tokens[place, rank]) for place, rank in enumerate(ranks))
            every[tokens] = float(np.prod([heads.said[place, rank] for place, rank in enumerate(ranks)]))
    drafter = ready(heads, replace(ABILITIES, max_leaves=64), nodes)
    found = paths(drafter.draft(History([5, 6]), always, GREEDY))
    best = sorted(every.values(), reverse=True)[:nodes]
    assert sorted(found.values(), reverse=True) == pytest.approx(best, rel=1e-5)
    for path, prob in found.items():
        assert prob == pytest.approx(every[path], rel=1e-5)
    least = best[nodes // 2]
    some = paths(drafter.draft(History([5, 6]), lambda path, depth: path >= least and depth < 3, GREEDY))
    assert some == {path: prob for path, prob in found.items() if prob >= least and len(path) < 3}


@pytest.mark.parametrize("leaves", [1, 2, 7])
def test_rows_leaves_and_context_bound_the_tree(leaves: int) -> None:
    abilities = replace(ABILITIES, max_leaves=leaves, max_rows=12, n_ctx=20)
    drafter = ready(lists(5, 8, 3), abilities)
    assert drafter.needs.leaves == leaves and drafter.needs.hidden == {LAST_HIDDEN}
    tree = drafter.draft(History([5] * 3), always, GREEDY).tree
    assert tree.leaves <= leaves and len(tree) == (5 if leaves == 1 else min(11, len(tree)))
    assert len(ready(lists(5, 8, 3), replace(ABILITIES, max_leaves=64)).draft(History([5]), always, GREEDY).tree) == 63
    assert len(drafter.draft(History([5] * 18), always, GREEDY).tree) == 2
    assert drafter.draft(History([5] * 20), always, GREEDY) is NO_DRAFT


def test_heads_are_asked_only_where_a_draft_may_pay() -> None:
    heads = lists(3, 4, 0)
    drafter = ready(heads)
    assert drafter.draft(History([5]), lambda path, depth: False, GREEDY) is NO_DRAFT
    for again in (False, True):
        drafter = ready(heads)
        if again:
            drafter.begin(History([5]))
        else:
            drafter.rewind(0)
        assert drafter.draft(History([5]), always, GREEDY) is NO_DRAFT
    assert heads.asked == 0
    heads.said[1, 2] = np.nan
    with pytest.raises(NotANumberError):  # the guard takes it out
        ready(heads).draft(History([5]), always, GREEDY)


def step(drafter: Medusa, tokens: tuple[Token, ...], path: tuple[int, ...] = (), draft: Draft = NO_DRAFT) -> None:
    rows = 1 + len(draft.tree)
    hidden = {LAST_HIDDEN: np.arange(rows, dtype=np.float32)[:, None].repeat(WIDTH, axis=1)}
    drafter.observe(
        History([5, *tokens]), Step(draft, path, tokens, Evaluation(np.zeros((rows, 9), np.float32), hidden))
    )


def test_ranks_are_heard_down_to_the_first_rejection_only() -> None:
    heads = Said([[10, 11], [20, 21], [30, 31]], [[0.5, 0.2]] * 3)
    drafter = ready(heads)
    text = History([5, 10, 21])
    for _ in range(400):
        draft = drafter.draft(text, always, GREEDY)
        above = draft.tree.tokens.index(10)
        step(drafter, (10, 21), (above,), draft)  # head 0 is right, then head 1 is: by its second token
    assert not len(drafter.draft(History([5, 10, 21, 7]), always, GREEDY).tree)  # a step that it did not hear
    tree = paths(drafter.draft(text, always, GREEDY))
    assert tree[(10,)] > 0.85 and tree[(11,)] < 0.05
    assert tree[(10, 21)] / tree[(10,)] > 0.85 and tree[(10, 20)] / tree[(10,)] < 0.1
    assert tree[(10, 21, 30)] / tree[(10, 21)] == pytest.approx(0.5, rel=1e-5)  # nothing is known of the third


def test_the_noise_of_the_targets_draws_changes_the_order_and_not_the_mass() -> None:
    heads = Said([[3, 4, 5]] * 2, [[0.3, 0.29, 0.28]] * 2)
    history, seen = History([1] * 9, trimmed=4), set[tuple[int, ...]]()
    for seed in range(20):
        sampler = Sampler(temperature=1.0, seed=seed)
        drafter = ready(heads)
        found = paths(drafter.draft(history, lambda path, depth: depth == 1, sampler))
        assert sum(found.values()) == pytest.approx(0.87, rel=1e-4)
        noise = gumbel(seed, history.position, np.array([3, 4, 5]))
        best = max(found, key=lambda path: found[path])[0]
        assert noise[best - 3] > noise.min()
        seen.add(tuple(token for (token,) in sorted(found, key=lambda path: -found[path])))
        assert paths(ready(heads).draft(history, always, replace(sampler, temperature=0.0)))[(3,)] == pytest.approx(0.3)
    assert len(seen) > 3


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with closing(LlamaModel(TARGET)) as loaded:
        yield loaded


@pytest.fixture
def target(model: LlamaModel) -> Iterator[LlamaTarget]:
    with closing(LlamaTarget(model, STRICT)) as opened:
        yield opened


@pytest.fixture
def prompts(model: LlamaModel) -> list[list[Token]]:
    return [ask(model, text) for text in PROMPTS]


def made(target: LlamaTarget, path: Path = HEADS) -> Drafter:
    return METHOD.make(Resources(target.abilities, heads={"medusa": path}, llama=target))


def written(
    target: LlamaTarget,
    drafter: Drafter,
    prompt: list[Token],
    sampler: Sampler,
    should_extend: ShouldExtend,
    size: int = 24,
) -> tuple[list[Token], list[Step]]:
    history = History(list(prompt))
    steps = reply(target, drafter, history, sampler, size, should_extend)
    return history.tokens[len(prompt) :], steps


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_wide_trees_leave_the_text_alone_and_the_first_step_drafts(
    target: LlamaTarget, prompts: list[list[Token]], temperature: float
) -> None:
    with closing(made(target)) as drafter:
        accepted = 0
        for seed, prompt in enumerate(prompts[:2]):
            sampler = Sampler(temperature=temperature, seed=seed)
            plain, _ = written(target, Plain(), prompt, sampler, always)
            target.rewind(0)
            text, steps = written(target, drafter, prompt, sampler, always)
            assert text == plain
            for each in steps:  # the first one too: it has the state that the prefill ended with
                assert each.draft.tree.leaves == 16 <= len(each.draft.tree) <= 63
            accepted += sum(len(each.path) for each in steps)
        repeated, steps = written(target, drafter, prompt, sampler, always)  # the prompt was in the cache: no state yet
        assert repeated == plain and not len(steps[0].draft.tree) and len(steps[1].draft.tree) > 8
        assert accepted > 5


def test_each_head_guesses_its_own_place(target: LlamaTarget, prompts: list[list[Token]]) -> None:
    """Off by one, heads would be right no more often than one guess for all places."""
    right, texts = {shift: 0 for shift in (-1, 0, 1)}, list[Token]()
    with closing(MedusaHeads(HEADS, lambda: 1, 8)) as heads:
        for prompt in prompts:
            history = History(list(prompt))
            target.request(frozenset({LAST_HIDDEN}))
            target.prefill(prompt[:-1])
            first: list[Token] = []
            for _ in range(60):
                evaluation = target.evaluate(history.tokens[-1])
                first.append(int(heads.best(evaluation.hidden[LAST_HIDDEN][0])[0][0, 0]))
                history.tokens.append(GREEDY.pick(evaluation.logits[0], history))
                target.keep(())
            text = history.tokens[len(prompt) :]  # token i was drawn from the state that first[i] was guessed from
            for shift in right:
                right[shift] += sum(first[place] == text[place + 1 + shift] for place in range(57))
            texts += text[:57]
    unigram = max(texts.count(token) for token in set(texts))
    assert right[0] > 1.5 * unigram and right[0] > 0.1 * len(texts)
    assert right[0] > 2 * right[1] and right[0] > right[-1]
