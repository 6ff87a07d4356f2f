"""SPACE on the two targets that it is made for: the bundled one with masks alone, and the one tuned with its masks."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.drafters.replies import ask, reply

from slipstream.drafters.base import Plain
from slipstream.drafters.resources import Resources
from slipstream.drafters.space import METHOD, Space
from slipstream.models.heads.file import read_heads
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import ROOT, History, TokenTree

BUNDLED = Path(__file__).parents[2] / "models" / "bundled"
STRICT = ContextOptions(n_ctx=512, kv="q8_0", flash=True, same_text=True, threads=1)
TARGETS = {"frozen": ("mini-q8_0", "mini-space"), "tuned": ("mini-tuned-q8_0", "mini-tuned-space")}
SIZE = 40


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
