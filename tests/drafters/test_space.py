"""SPACE's groups against their definition, on a target without weights, and SPACE on the two targets it is made for."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.drafters.replies import PROMPT, always, ask, reply, steps_of, text_of
from tests.models.fake_target import FakeTarget

from slipstream.drafters.base import NO_DRAFT, Draft, Plain, ShouldExtend, Step
from slipstream.drafters.resources import Resources
from slipstream.drafters.space import METHOD, MaskGains, Space
from slipstream.drafters.tree import chain_draft
from slipstream.models.heads.file import read_heads
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, Abilities, Evaluation, History, Token, TokenTree

N_VOCAB, MASKS = 24, 3
GREEDY = Sampler(temperature=0)
BUNDLED = Path(__file__).parents[2] / "models" / "bundled"
STRICT = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True, threads=1)
TARGETS = {"frozen": ("mini-q8_0", "mini-space"), "tuned": ("mini-tuned-q8_0", "mini-tuned-space")}
SIZE = 40


def never(path: float, depth: int) -> bool:
    return False


def at_least(least: float) -> ShouldExtend:
    return lambda path, depth: path >= least


def fake(n_ctx: int = 4096, order: int = 3, blur: float = 0.0) -> FakeTarget:
    target = FakeTarget(N_VOCAB, n_ctx, order=order, blur=blur)
    target.use_masks(np.zeros((MASKS, 8), np.float32))
    return target


def groups_of(tree: TokenTree) -> dict[int, list[int]]:
    """The probes below each acceptable node and the root."""
    groups: dict[int, list[int]] = {}
    owner: dict[int, int] = {}
    for node in sorted(tree.probes):
        parent = tree.parents[node]
        owner[node] = owner.get(parent, parent)
        groups.setdefault(owner[node], []).append(node)
    return groups


def path_to(tree: TokenTree, node: int) -> list[Token]:
    path: list[Token] = []
    while node != ROOT:
        path.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return path


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("should_extend", [always, at_least(0.1), at_least(0.3)])
def test_below_the_root_and_candidates_hang_chains_of_masks(should_extend: ShouldExtend, temperature: float) -> None:
    shapes = Counter[tuple[int, int]]()
    for step, _ in steps_of(Space(fake().abilities, MASKS), fake(), Sampler(temperature=temperature), should_extend):
        tree = step.draft.tree
        for nodes in groups_of(tree).values():
            assert [tree.tokens[node] for node in nodes] == [N_VOCAB + mask for mask in range(len(nodes))]
            assert [tree.parents[node] for node in nodes[1:]] == nodes[:-1]
        if should_extend is always and tree.leaves < 16 and len(tree) < 63:
            assert set(groups_of(tree)) == {ROOT} | set(range(len(tree))) - tree.probes
            assert all(len(nodes) == MASKS for nodes in groups_of(tree).values())
        shapes[tree.drafted, len(tree.probes)] += 1
    assert len(shapes) > 1


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_candidates_are_what_the_group_below_the_accepted_end_has_guessed(temperature: float) -> None:
    """The same masks behind the same text alone, ranked by the sampler, give the same candidates: none sees a rejected
    token, none sees the token that the target draws in the first mask's place."""
    sampler = Sampler(temperature=temperature, seed=5)
    alone = fake()
    length, depths, accepted = len(PROMPT), Counter[int](), Counter[int]()  # length: of the history before the step
    group: list[Token] = []
    wanted: list[tuple[list[Token], list[float]]] = []
    for step, history in steps_of(Space(fake().abilities, MASKS), fake(), sampler, always):
        tree = step.draft.tree
        for node in range(len(tree)):
            if node not in tree.probes:
                assert tree.tokens[node] in wanted[tree.depths[node] - 1][0]
                depths[tree.depths[node]] += 1
        if wanted:
            firsts = [tokens[0] for tokens, _ in wanted]
            assert [tree.child(parent, token) for parent, token in zip(range(-1, 2), firsts, strict=False)]
            assert tree.child(ROOT, firsts[0]) is not None
        end = step.path[-1] if step.path else ROOT
        group = [tree.tokens[node] for node in groups_of(tree).get(end, [])]
        accepted[len(step.path)] += 1
        before = [*history.tokens[:length], *path_to(tree, end)]  # without the token that the target drew last
        alone.rewind(0)
        alone.prefill(before[:-1])
        probes = TokenTree(tuple(group), tuple(range(-1, len(group) - 1)), frozenset(range(len(group))))
        rows = alone.evaluate(before[-1], probes).logits[1:].copy()
        alone.keep(())
        wanted = []
        for row in rows:
            wanted.append(sampler.rank(row, history, [tokens[0] for tokens, _ in wanted], 3))
        length = len(history.tokens)
    assert depths[1] and depths[2] and depths[3] and accepted[0] and accepted[1]


@pytest.mark.parametrize("temperature", [0.0, 0.2, 0.8, 1.5])
@pytest.mark.parametrize("should_extend", [always, at_least(0.05), at_least(0.5)])
def test_wrong_masks_leave_the_text_alone(temperature: float, should_extend: ShouldExtend) -> None:
    sampler = Sampler(temperature=temperature, seed=3)
    plain = text_of(Plain(), fake(order=1), sampler, always)
    text, drafted = list[Token](), 0
    for step, _ in steps_of(Space(fake().abilities, MASKS), fake(order=1), sampler, should_extend):
        assert not step.draft.tree.probes.intersection(step.path) and max(step.tokens) < N_VOCAB
        text += step.tokens
        drafted += step.draft.tree.drafted
    assert text == plain
    assert drafted > 0 or should_extend(0.4, 1) is False


@pytest.mark.parametrize(
    ("rows", "leaves", "n_ctx"), [(64, 16, 60), (2, 16, 400), (5, 16, 400), (64, 2, 400), (64, 3, 400), (64, 1, 400)]
)
def test_trees_stay_within_what_the_target_takes(rows: int, leaves: int, n_ctx: int) -> None:
    abilities = replace(fake().abilities, max_rows=rows, max_leaves=leaves, n_ctx=n_ctx)
    target = fake(n_ctx)
    target.abilities = abilities
    plain = text_of(Plain(), fake(n_ctx), Sampler(seed=1), always)
    steps = [step for step, _ in steps_of(Space(abilities, MASKS), target, Sampler(seed=1), always)]
    assert [token for step in steps for token in step.tokens] == plain
    assert max(len(step.draft.tree) for step in steps) == min(rows - 1, max(len(s.draft.tree) for s in steps))
    assert any(step.draft.tree.drafted for step in steps) and any(step.draft.tree.probes for step in steps)


def prepared(gains: list[float], guesses: list[list[float]], abilities: Abilities | None = None) -> Space:
    """A drafter whose masks have guessed, with given rates of acceptance and a given row of logits each."""
    drafter = Space(abilities or fake().abilities, len(gains))
    for ratio, gain in zip(drafter.gains.ratios, gains, strict=True):
        ratio.observed, ratio.expected = 1e6 * gain, 1e6
    for mask, row in enumerate(guesses):
        drafter._rows[mask] = -50.0
        drafter._rows[mask, : len(row)] = np.log(row)
    drafter._ready, drafter._follow = len(guesses), len(PROMPT)
    return drafter


def test_beside_an_unsure_guess_stand_its_rivals_where_a_row_is_worth_it() -> None:
    drafter = prepared([0.5] * 3, [[0.4, 0.35, 0.25], [0.6, 0.4]])
    draft = drafter.draft(History(list(PROMPT)), at_least(0.12), GREEDY)
    tree = draft.tree
    paths = {tuple(path_to(tree, node)) for node in range(len(tree)) if node not in tree.probes}
    assert paths == {(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    assert tree.tokens[:2] == (0, 0)  # the best path is the first: its cells stay in plain decoding's order
    assert draft.probs[0] == pytest.approx(0.4) and draft.probs[1] == pytest.approx(0.6)
    assert prepared([0.5], [[1.0]]).draft(History(list(PROMPT)), never, GREEDY).tree.tokens == ()
    assert text_of(Space(fake().abilities, MASKS), fake(), GREEDY, never) == text_of(Plain(), fake(), GREEDY, always)


def test_what_masks_bring_is_hoped_for_then_measured_then_hoped_for_again() -> None:
    gains = MaskGains(2)
    assert gains.expected() == [1.0, 1.0]
    for _ in range(60):
        gains.add(2, 0)
    low = gains.expected()
    assert low[0] < 0.15 and low[1] < low[0]
    tried = 0
    for _ in range(400):  # worthless masks, where a row must bring half a token
        pays = gains.expected()[0] >= 0.5
        gains.add(int(pays), 0)
        tried += pays
    assert 20 < tried < 80
    for _ in range(60):
        gains.add(2, 1)
    first, second = gains.expected()
    assert first > 0.99 and second < 0.15


def step_of(draft: Draft, tokens: tuple[Token, ...] = (7,), path: tuple[int, ...] = (), ended: bool = False) -> Step:
    rows = np.random.default_rng(0).standard_normal((1 + len(draft.tree), N_VOCAB)).astype(np.float32)
    return Step(draft, path, tokens, Evaluation(rows), ended)


@pytest.mark.parametrize("event", ["mine", "other", "ended", "rewind", "begin"])
def test_guesses_live_for_one_step_of_ones_own(event: str) -> None:
    drafter, history = Space(fake().abilities, MASKS), History(list(PROMPT))
    draft = drafter.draft(history, always, GREEDY)
    assert len(draft.tree.probes) == len(draft.tree) == MASKS
    other = chain_draft([1, 2, 3], [0.5] * 3, "other")
    history.tokens.append(7)
    drafter.observe(history, step_of(other if event == "other" else draft, ended=event == "ended"))
    if event == "rewind":
        drafter.rewind(3)
    if event == "begin":
        drafter.begin(history)
    drafted = drafter.draft(history, always, GREEDY).tree.drafted
    assert (drafted > 0) == (event == "mine")
    drafter.observe(history, step_of(NO_DRAFT))  # of another text: nothing is measured
    assert drafter.draft(history, always, GREEDY).tree.drafted == 0


@pytest.fixture(scope="module", params=TARGETS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LlamaModel, Path]]:
    target, masks = TARGETS[request.param]
    model = LlamaModel(BUNDLED / f"slipstream-{target}.gguf")
    yield model, BUNDLED / f"slipstream-{masks}.gguf"
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.2, 0.8, 1.5])
def test_sampling_is_exact_on_both_targets(pair: tuple[LlamaModel, Path], temperature: float) -> None:
    model, masks = pair
    accepted = rejected = 0
    with closing(LlamaTarget(model, STRICT)) as target:
        drafter = METHOD.make(Resources(target.abilities, heads={"space": masks}, llama=target))
        for seed, text in enumerate(("Who are you?", "Tell me about the sea", "Name five animals.")):
            sampler = Sampler(temperature=temperature, seed=seed)
            plain, drafted = History(ask(model, text)), History(ask(model, text))
            reply(target, Plain(), plain, sampler, SIZE)
            for step in reply(target, drafter, drafted, sampler, SIZE, lambda path, _: path >= 0.02):
                accepted += len(step.path)
                rejected += step.draft.tree.depth - len(step.path)
            assert drafted.tokens == plain.tokens
    assert accepted > 0 and rejected > 0


@pytest.mark.slow
def test_the_first_mask_guesses_the_token_after_the_next() -> None:
    """On the tuned target: right far more often than the text's commonest token, and than at any other place."""
    model = LlamaModel(BUNDLED / "slipstream-mini-tuned-q8_0.gguf")
    masks = read_heads(BUNDLED / "slipstream-mini-tuned-space.gguf").tensors["masks"]
    right, guesses, common = Counter[int](), 0, 0
    with closing(LlamaTarget(model, STRICT)) as target:
        target.use_masks(masks)
        probe = TokenTree((model.n_vocab,), (ROOT,), frozenset({0}))
        for text in ("Who are you?", "Tell me about the sea", "What is a bridge?", "Name five animals."):
            prompt = ask(model, text)
            history = History(list(prompt))
            reply(target, Plain(), history, size=SIZE)
            written = history.tokens[len(prompt) :]
            target.prefill(prompt[:-1])
            for at, token in enumerate([prompt[-1], *written[:-3]]):
                best = int(target.evaluate(token, probe).logits[1].argmax())
                target.keep(())
                guesses += 1
                for place in (-1, 0, 1, 2):
                    right[place] += at + place >= 0 and written[at + place] == best
            common += Counter(written).most_common(1)[0][1]
    model.close()
    assert right[1] > 2 * max(right[place] for place in (-1, 0, 2))
    assert right[1] / guesses > 0.2 and right[1] > 1.5 * common


def test_the_method_says_what_it_lacks(pair: tuple[LlamaModel, Path]) -> None:
    model, masks = pair
    with closing(LlamaTarget(model, STRICT)) as target:
        heads = {"space": masks}
        assert METHOD.lacks(Resources(target.abilities, heads=heads, llama=target)) == ""
        assert "no" in METHOD.lacks(Resources(target.abilities, llama=target))
        without = replace(target.abilities, masks=False)
        assert "vectors" in METHOD.lacks(Resources(without, heads=heads, llama=target))
        with pytest.raises(ValueError, match="masks"):
            Space(without, 3)
