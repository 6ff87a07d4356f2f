from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.drafters.training.replies import ManyReplies
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

BUNDLED = Path(__file__).parents[2] / "models" / "bundled" / "slipstream-mini-q8_0.gguf"
OPTIONS = ContextOptions(kv="q8_0", flash=True, same_text=True, max_leaves=1, threads=1)
ASKED = ("Hi!", "Tell me about the sea", "What is a boat?", "List three birds.", "How do I list files?", "Who are you?")


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    opened = LlamaModel(BUNDLED)
    yield opened
    opened.close()


def _prompts(model: LlamaModel, temperature: float) -> list[tuple[list[Token], Sampler]]:
    texts = [f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n" for asked in ASKED]
    return [(model.tokenize(t, True), Sampler(temperature=temperature, seed=i)) for i, t in enumerate(texts)]


def _plain(model: LlamaModel, prompt: list[Token], sampler: Sampler, most: int) -> list[Token]:
    history = History(list(prompt))
    with closing(LlamaTarget(model, OPTIONS)) as target:
        target.prefill(prompt[:-1])
        while len(history.tokens) - len(prompt) < most:
            row = target.evaluate(history.tokens[-1]).logits[0]
            target.keep(())
            history.tokens.append(sampler.pick(row, history))
            if history.tokens[-1] in model.ends:
                break
    return history.tokens[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_replies_side_by_side_are_the_replies_one_by_one(temperature: float, model: LlamaModel) -> None:
    prompts = _prompts(model, temperature)
    with closing(ManyReplies(model, 3, 256, OPTIONS)) as replies:  # fewer places than prompts: they are used again
        found = {tuple(prompt): reply for prompt, reply in replies.replies(iter(prompts), 40)}
    assert found == {tuple(prompt): _plain(model, prompt, sampler, 40) for prompt, sampler in prompts}


def test_a_prompt_that_does_not_fit_is_passed_over(model: LlamaModel) -> None:
    short, long = _prompts(model, 0.0)[0], (list(range(300, 500)), Sampler(temperature=0))
    with closing(ManyReplies(model, 2, 128, OPTIONS)) as replies:
        found = list(replies.replies(iter([long, short, long]), 20))
    assert [list(prompt) for prompt, _ in found] == [short[0]]


def test_a_stop_ends_the_run_and_the_places_are_free_again(model: LlamaModel) -> None:
    prompts = _prompts(model, 0.0)
    passes = iter([False] * 2)
    with closing(ManyReplies(model, 3, 256, OPTIONS)) as replies:
        assert not list(replies.replies(iter(prompts), 40, stop=lambda: next(passes, True)))
        again = {tuple(prompt): reply for prompt, reply in replies.replies(iter(prompts), 10)}
    assert again == {tuple(prompt): _plain(model, prompt, sampler, 10) for prompt, sampler in prompts}
