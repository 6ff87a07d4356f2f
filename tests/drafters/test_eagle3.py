"""EAGLE-3 on the bundled target: the right pairs, the same text, a reused prefix, heads that do not fit."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.drafters.changed_file import changed
from tests.drafters.replies import ask, reply

from slipstream.drafters.base import Plain
from slipstream.drafters.feature_drafter import EAGLE3, FeatureDrafter, open_eagle3
from slipstream.drafters.registry import why_not
from slipstream.drafters.resources import Resources
from slipstream.models.errors import SlipstreamError
from slipstream.models.gguf.reader import read_header
from slipstream.models.gguf.tensors import read_tensor
from slipstream.models.heads.check import target_layers, unfit
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.features import ROWS, FeatureContext, HeadOutput
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import Floats, History, Token

BUNDLED = Path(__file__).parents[2] / "models" / "bundled"
HEAD = BUNDLED / "slipstream-mini-eagle3-q8_0.gguf"
STRICT = ContextOptions(n_ctx=1024, kv="q8_0", flash=True, same_text=True, threads=1)
PROMPTS = ["Tell me about the sea", "Write a list of ten animals.", "Tell me a story about a small fox."]


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    loaded = LlamaModel(BUNDLED / "slipstream-mini-q8_0.gguf")
    yield loaded
    loaded.close()


@pytest.fixture
def target(model: LlamaModel) -> Iterator[LlamaTarget]:
    with closing(LlamaTarget(model, STRICT)) as opened:
        yield opened


@pytest.fixture
def eagle(target: LlamaTarget) -> Iterator[FeatureDrafter]:
    with closing(open_eagle3(HEAD, target)) as drafter:
        yield drafter


def features(target: LlamaTarget, text: list[Token], layers: tuple[int, ...]) -> Floats:
    chunks: list[Floats] = []
    target.rewind(0)
    target.request(frozenset(layers))
    target.prefill(text, lambda chunk: chunks.append(np.concatenate([chunk.hidden[at] for at in layers], axis=1)))
    return np.concatenate(chunks)


def test_the_pair_of_a_place_tells_the_token_after_the_next(model: LlamaModel, target: LlamaTarget) -> None:
    """Teacher-forced: with the token at P + 1 the head guesses P + 2; pairs that are off by one guess worse."""
    layers = target_layers(read_header(HEAD))
    hits, tokens = Counter[int](), Counter[Token]()
    weights = LlamaModel(HEAD)
    with closing(FeatureContext(target, weights)) as head:
        for prompt in PROMPTS:
            history = History(ask(model, prompt))
            start = len(history.tokens)
            reply(target, Plain(), history, size=80)
            text = history.tokens
            tokens.update(text[start:])
            g = head.encode(features(target, text, layers))
            for shift in (-1, 0, 1):
                head.rewind(0)
                places = [place for place in range(1, len(text) - 1) if place + 2 + shift < len(text)]
                for at in range(0, len(places), ROWS):
                    run = places[at : at + ROWS]
                    guess = head.append([text[place + 1 + shift] for place in run], g[run], answer=True)
                    assert guess
                    best = guess.logits.argmax(axis=1).tolist()
                    hits[shift] += sum(
                        text[place + 2 + shift] == token
                        for place, token in zip(run, best, strict=True)
                        if place + 2 + shift >= start
                    )
    weights.close()
    most_frequent = tokens.most_common(1)[0][1]
    assert hits[0] > 1.5 * most_frequent and hits[0] > 1.1 * max(hits[-1], hits[1])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_two_turns_have_the_text_of_plain_decoding(
    model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter, temperature: float
) -> None:
    """The second turn reuses the first one's cells, the third begins where the first did."""
    accepted = 0
    for seed, prompt in enumerate(PROMPTS[:2]):
        texts: list[list[Token]] = []
        for drafter in (Plain(), eagle):
            sampler = Sampler(temperature=temperature, seed=seed)
            history = History(ask(model, prompt))
            first = list(history.tokens)
            steps = reply(target, drafter, history, sampler)
            history.tokens += model.tokenize("<|im_end|>\n", True) + ask(model, "And then?")
            steps += reply(target, drafter, history, sampler)
            again = History(first)
            steps += reply(target, drafter, again, replace(sampler, seed=seed + 9))
            texts.append(history.tokens + again.tokens)
            accepted += sum(len(step.path) for step in steps)
        assert texts[0] == texts[1]
    assert accepted > 0


def follows(drafter: FeatureDrafter, history: History) -> HeadOutput:
    drafter.queue.text += history.tokens[len(drafter.queue.text) :]
    guess = drafter._settle(len(drafter.queue.waiting), answer=True)
    assert guess and drafter.queue.read[-1] == len(history.tokens) - 2
    return HeadOutput(guess.logits[-1].copy(), guess.features[-1].copy())


def test_a_head_that_lived_through_a_reply_says_what_a_fresh_one_says(
    model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter
) -> None:
    """Rejected branches, skipped steps and held features leave no trace in its cache."""
    history = History(ask(model, PROMPTS[1]))
    steps = iter([True, True, True, False] * 40)
    reply(target, eagle, history, size=60, should_extend=lambda _p, depth: depth <= 4 and (depth > 1 or next(steps)))
    lived = follows(eagle, history)
    with closing(open_eagle3(HEAD, target)) as fresh:
        fresh.begin(history)
        target.rewind(0)
        target.prefill(history.tokens[:-1], lambda chunk: fresh.on_prefill(chunk.tokens, chunk.hidden))
        anew = follows(fresh, history)
    assert len(eagle.queue.read) == len(history.tokens) - 1
    for one, other in zip(lived, anew, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02 * np.abs(other).max())


def test_every_branch_of_a_tree_says_what_a_chain_says(target: LlamaTarget) -> None:
    """Tree attention: random beams through every sequence, against a fresh cache for each path."""
    rng = np.random.default_rng(5)
    weights = LlamaModel(HEAD)
    with closing(FeatureContext(target, weights)) as head, closing(FeatureContext(target, weights)) as alone:
        tokens, features = rng.integers(0, 4096, 90).tolist(), rng.normal(size=(90, 256)).astype(np.float32)
        for length in (70, 80, 75):  # the branches' sequences catch up, and are cut
            head.rewind(min(length, head.length))
            head.append(tokens[head.length : length], features[head.length : length], answer=False)
            paths: list[list[tuple[Token, Floats]]] = [[]]
            for _ in range(5):
                parents = sorted(rng.integers(0, len(paths), rng.integers(1, 5)).tolist(), key=lambda _: rng.random())
                pairs = [(int(rng.integers(0, 4096)), rng.normal(size=256).astype(np.float32)) for _ in parents]
                paths = [[*paths[parent], pair] for parent, pair in zip(parents, pairs, strict=True)]
                guess = head.grow(parents, [token for token, _ in pairs], np.stack([row for _, row in pairs]))
                logits, made = guess.logits.copy(), guess.features.copy()
                for row, path in enumerate(paths):
                    alone.rewind(0)
                    run = [*tokens[:length], *(token for token, _ in path)]
                    wanted = alone.append(run, np.stack([*features[:length], *(row for _, row in path)]), answer=True)
                    assert wanted
                    np.testing.assert_allclose(logits[row], wanted.logits[-1], atol=0.02 * np.abs(logits).max())
                    np.testing.assert_allclose(made[row], wanted.features[-1], atol=0.02 * np.abs(made).max())
            head.rewind(length)
    weights.close()


def test_trees_find_more_than_chains(model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter) -> None:
    with (
        closing(LlamaTarget(model, replace(STRICT, max_leaves=1))) as narrow,
        closing(open_eagle3(HEAD, narrow)) as chain,
    ):
        accepted = Counter[str]()
        beside = 0
        for prompt in PROMPTS[:2]:
            for name, drafter, on in (("tree", eagle, target), ("chain", chain, narrow)):
                for step in reply(on, drafter, History(ask(model, prompt)), size=60):
                    tree = step.draft.tree
                    assert len(tree) <= 16 and tree.leaves <= (1 if name == "chain" else 4)
                    accepted[name] += len(step.path)
                    beside += any(tree.first_leaves[node] > 0 for node in step.path)
    assert accepted["tree"] > accepted["chain"] > 0 and beside > 0


def test_it_drafts_after_an_unheard_prefix(model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter) -> None:
    history = History(ask(model, PROMPTS[0]))
    reply(target, Plain(), history)
    plain = History(list(history.tokens))
    reply(target, Plain(), plain)
    state = target.save()
    target.rewind(0)
    target.restore(state, plain.tokens[:-1])
    target.rewind(len(history.tokens) - 1)
    steps = reply(target, eagle, history)
    assert history.tokens == plain.tokens
    assert len(steps[0].draft.tree) == 0 and sum(len(step.draft.tree) for step in steps) > 0


def test_it_stops_where_it_is_not_worth_it_and_where_the_context_ends(
    model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter
) -> None:
    history = History(ask(model, PROMPTS[0]))
    for step in reply(target, eagle, history, should_extend=lambda path, depth: path >= 0.3 and depth <= 60):
        assert step.draft.tree.leaves <= 3 and set(step.draft.sources) <= {"eagle3"}
        assert all(prob >= 0.3 for prob in step.draft.probs)
    full = History((ask(model, PROMPTS[0]) * 64)[: STRICT.n_ctx - 3])
    steps = reply(target, eagle, full, size=3, should_extend=lambda _p, _d: True)
    assert sum(len(step.tokens) for step in steps) == 3


def reduced(folder: Path, ids: list[int]) -> Path:
    header = read_header(HEAD)
    output = next(read_tensor(header, tensor) for tensor in header.tensors if tensor.name == "output.weight")
    tensors = {"output.weight": output[ids], "d2t": np.array(ids, np.int64)}
    return changed(HEAD, folder / "reduced.gguf", tensors=tensors)


def test_a_small_vocabulary_drafts(
    model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter, tmp_path: Path
) -> None:
    whole = History(ask(model, PROMPTS[1]))
    steps = reply(target, eagle, whole, size=40)
    drafted = {token for step in steps for token in step.draft.tree.tokens}
    ids = sorted(drafted | set(range(0, 4096, 16)))  # in another order than the whole one's
    path = reduced(tmp_path, ids[::-1])
    assert unfit(read_header(path), target.abilities) == ""
    history = History(ask(model, PROMPTS[1]))
    with closing(open_eagle3(path, target)) as drafter:
        found = reply(target, drafter, history, size=40)
    assert history.tokens == whole.tokens
    chosen = [token for step in found for token in step.draft.tree.tokens]
    assert chosen and set(chosen) <= set(ids)
    assert sum(len(step.path) for step in found) > 0.7 * sum(len(step.path) for step in steps)


@pytest.mark.parametrize(
    ("keys", "tensors", "reason"),
    [
        ({"eagle3.target_layers": [2, 4]}, {}, "three of the model's"),
        ({"eagle3.block_count": 2}, {}, "one layer"),
        ({"eagle3.target_layers": [2, 4, 14]}, {}, "input of layer 14, which this model does not hand out"),
        ({"eagle3.target_layers": [-1, 4, 5]}, {}, "does not hand out"),
        ({"eagle3.target_hidden_size": 512}, {}, "512 wide, and this one is 256"),
        ({"eagle3.embedding_length": 128}, {}, "not as wide as the model"),
        ({"eagle3.attention.head_count_kv": 3}, {}, "4 heads cannot share 3"),
        ({"eagle3.attention.value_length": 32}, {}, "contradict"),
        ({"eagle3.rope.dimension_count": 63}, {}, "rotates 63 numbers of heads that have 64"),
        ({}, {"output.weight": np.zeros((100, 256), np.float32)}, "contradict"),
        ({}, {"token_embd.weight": np.zeros((100, 256), np.float32)}, "contradict"),
        ({}, {"d2t": np.zeros(100, np.int64)}, "contradict"),
        ({}, {"d2t": np.full(4096, 4096, np.int64)}, "contradict"),
        ({}, {"d2t": np.full(4096, -1, np.int64)}, "contradict"),
        ({}, {"d2t": np.zeros(4096, np.int32)}, "contradict"),
        ({}, {"d2t": np.zeros(4096, np.int64), "output.weight": None}, "contradict"),
    ],
)
def test_a_deadly_head_is_refused(target: LlamaTarget, tmp_path: Path, keys: Any, tensors: Any, reason: str) -> None:
    path = changed(HEAD, tmp_path / "bad.gguf", keys, tensors)
    assert reason in why_not("eagle3", Resources(target.abilities, heads={"eagle3": path}, llama=target))


def test_what_it_lacks_is_said_and_a_file_that_llama_cpp_refuses(target: LlamaTarget, tmp_path: Path) -> None:
    assert EAGLE3.lacks(Resources(target.abilities, llama=target)) == "it needs eagle3 heads, and this model has none"
    assert EAGLE3.lacks(Resources(target.abilities, heads={"eagle3": HEAD}, llama=target)) == ""
    other = replace(target.abilities, n_vocab=4000)
    assert "has 4,096 tokens" in EAGLE3.lacks(Resources(other, heads={"eagle3": HEAD}, llama=target))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(HEAD.read_bytes()[:100])
    assert "is cut short" in why_not("eagle3", Resources(target.abilities, heads={"eagle3": cut}, llama=target))
    broken = changed(HEAD, tmp_path / "broken.gguf", tensors={"fc.weight": None})
    with pytest.raises(SlipstreamError, match="cannot load"):
        open_eagle3(broken, target)


def test_a_failed_pass_leaves_the_cache_in_order(model: LlamaModel, target: LlamaTarget, eagle: FeatureDrafter) -> None:
    history = History(ask(model, PROMPTS[0]))
    reply(target, eagle, history)
    eagle.begin(History([1] * (ROWS + 8) + [5000]))  # no such token: of two passes, the second fails
    eagle.queue.take(0, dict.fromkeys(eagle.needs.hidden, np.zeros((ROWS + 8, 256), np.float32)))
    with pytest.raises(SlipstreamError, match="could not be evaluated"):
        eagle._settle(ROWS + 8)
    assert eagle._head.length == len(eagle.queue.read) == 0
    assert sum(len(step.draft.tree) for step in reply(target, eagle, history)) > 0
