"""The text that heads are trained on: the model's own answers, with second turns, in the ids of its own template."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.drafters.changed_file import changed
from tests.training.gguf_file import BUNDLED

from slipstream.drafters.training import texts
from slipstream.drafters.training.corpus import TrainingText, WindowSampler
from slipstream.drafters.training.replies import ManyReplies
from slipstream.models.errors import UsageError
from slipstream.models.llama.context import LlamaTarget
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions
from slipstream.models.sampling.sampler import Sampler
from slipstream.models.types import History, Token

OPTIONS = ContextOptions(max_rows=16, max_leaves=1, threads=1)
STRICT = ContextOptions(kv="q8_0", flash=True, same_text=True, max_leaves=1, threads=1)
ASKED = ("Hi!", "Tell me about the sea", "What is a boat?", "List three birds.", "How do I list files?", "Who are you?")


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with closing(LlamaModel(BUNDLED)) as opened:
        yield opened


def test_a_second_turn_continues_the_first_as_the_template_does(model: LlamaModel) -> None:
    ids = texts.ChatIds(model)
    messages = [
        {"role": "user", "content": "What is rain?"},
        {"role": "assistant", "content": "Water that falls from clouds."},
        {"role": "user", "content": "Why?"},
    ]
    (end,) = model.tokenize("<|im_end|>", True)
    prompt, reply = ids.prompt(messages[:1]), [*model.tokenize(messages[1]["content"], False), end]
    assert ids.follow_up(messages, prompt, reply) == ids.prompt(messages)


def test_a_chat_begins_with_one_token_where_the_template_writes_it_too(tmp_path: Path) -> None:
    source = " {{ bos_token }}<|im_start|>{{ messages[0].content }}<|im_end|>"
    path = changed(
        BUNDLED, tmp_path / "bos.gguf", {"tokenizer.chat_template": source, "tokenizer.ggml.add_bos_token": True}
    )
    with closing(LlamaModel(path, vocabulary_only=True)) as model:
        (bos,), ids = model.opening(), texts.ChatIds(model)
        chat = [{"role": "user", "content": "What is rain?"}]
        for found in (ids.prompt(chat), ids.chat(chat)[0]):
            assert found[0] == bos and found.count(bos) == 1 + (model.text_of(bos) == "<|im_start|>")


def test_weights_are_on_what_the_assistant_says_and_on_its_end(model: LlamaModel) -> None:
    ids, weights = texts.ChatIds(model).chat(
        [{"role": "user", "content": "What is rain?"}, {"role": "assistant", "content": "Water."}]
    )
    said = [token for token, weight in zip(ids, weights, strict=True) if weight]
    assert model.pieces(said).startswith(b"Water.") and said[-1] in model.ends


def test_own_answers_have_second_turns_and_go_on(model: LlamaModel, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    lines: list[str] = []
    first = texts.made_answers(model, OPTIONS, tokens=600, path=path, seed=3, say=lines.append)
    (user,) = (token for token in range(20) if model.text_of(token) == "<|im_start|>")
    chats = [first.ids[a:b].tolist() for a, b in zip(first.offsets[:-1], first.offsets[1:], strict=True)]
    turns = [chat.count(user) for chat in chats]
    assert set(turns) == {2, 4} and 0.1 < turns.count(4) / len(turns) < 0.5
    assert len({tuple(chat) for chat in chats}) == len(chats)
    assert first.weights.sum() >= 600 and lines
    path.write_bytes(path.read_bytes() + b"[[1, 2")  # a line that a kill cut short
    more = texts.made_answers(model, OPTIONS, tokens=900, path=path, seed=3, say=lines.append)
    assert more.ids[: len(first.ids)].tolist() == first.ids.tolist() and more.weights.sum() >= 900


def test_own_answers_to_prompts_from_a_file_ask_on_with_its_turns(model: LlamaModel, tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text('What is rain?\n\n["Name a bird.", "And another?"]\n{"turns": ["Hi.", 3]}\n"Why?"\n')
    prompts = texts.read_prompts(asked)
    assert prompts == [["What is rain?"], ["Name a bird.", "And another?"], ["Hi."], ["Why?"]]
    answers = tmp_path / "answers.jsonl"
    made = texts.made_answers(model, OPTIONS, 500, answers, 3, lambda _: None, prompts)
    written = model.pieces(made.ids.tolist()).decode()
    assert "And another?" in written.split("Name a bird.", 1)[1] and "What is rain?" in written
    assert texts.answered_tokens(answers) >= 500
    asked.write_text("\n[]\n")
    with pytest.raises(UsageError, match="holds no prompt"):
        texts.read_prompts(asked)


def test_a_reply_that_repeats_itself_is_trained_on_once(model: LlamaModel, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps([[1, 2], [*range(3, 20), *[20, 21, 22] * 40], 0]) + "\n")
    text = texts.made_answers(model, OPTIONS, 10, answers, 3, lambda _: None)
    assert text.weights.tolist() == [0.0] * 2 + [1.0] * (17 + 3 + 48) + [0.0] * (120 - 51)


def numbered(chats: int, length: int) -> TrainingText:
    """Chats whose ids all differ, the first half of each a prompt."""
    half = length // 2
    weights = [0.0] * half + [1.0] * (length - half)
    return TrainingText.of((list(range(c * length, c * length + length)), weights) for c in range(chats))


def test_chats_that_are_held_out_are_not_trained_on() -> None:
    train, held = numbered(100, 8).split()
    assert len(held.offsets) - 1 == 5 and len(train.offsets) - 1 == 95
    assert set(train.ids.tolist()).isdisjoint(held.ids.tolist())
    assert len(train.ids) + len(held.ids) == 800
    with pytest.raises(UsageError, match="too little text"):
        numbered(1, 8).split()


def test_the_sampler_goes_on_where_it_was_stored() -> None:
    text = numbered(50, 100)
    one, two = WindowSampler(text, seed=5), WindowSampler(text, seed=5)
    for _ in range(7):
        one.batch(4, 64)
    two.restore(one.state())
    for _ in range(9):  # into the next round
        left, right = one.batch(4, 64), two.batch(4, 64)
        assert all(np.array_equal(left[i], right[i]) for i in range(3))


def test_windows_start_at_chats_number_them_and_cover_a_long_text() -> None:
    ids, weights, chats = WindowSampler(numbered(40, 20), seed=4).batch(8, 63)
    assert (ids[:, 0] % 20 == 0).all()
    for row, weight, number in zip(ids, weights, chats, strict=True):
        assert ((row % 20 == 0)[1:] == (np.diff(number) == 1)).all() and ((row % 20 >= 10) == (weight == 1)).all()
    sampler = WindowSampler(numbered(2, 650), seed=2)
    starts = {int(row[0]) for _ in range(40) for row in sampler.batch(4, 64)[0]}
    assert starts == {chat * 650 + 65 * window for chat in range(2) for window in range(10)}


def _prompts(model: LlamaModel, temperature: float) -> list[tuple[list[Token], Sampler]]:
    texts = [f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n" for asked in ASKED]
    return [(model.tokenize(t, True), Sampler(temperature=temperature, seed=i)) for i, t in enumerate(texts)]


def _plain(model: LlamaModel, prompt: list[Token], sampler: Sampler, most: int) -> list[Token]:
    history = History(list(prompt))
    with closing(LlamaTarget(model, STRICT)) as target:
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
    with closing(ManyReplies(model, 3, 256, STRICT)) as replies:  # fewer places than prompts: they are used again
        found = {tuple(prompt): reply for prompt, reply in replies.replies(iter(prompts), 40)}
    assert found == {tuple(prompt): _plain(model, prompt, sampler, 40) for prompt, sampler in prompts}


def test_a_prompt_that_does_not_fit_is_passed_over(model: LlamaModel) -> None:
    short, long = _prompts(model, 0.0)[0], (list(range(300, 500)), Sampler(temperature=0))
    with closing(ManyReplies(model, 2, 128, STRICT)) as replies:
        found = list(replies.replies(iter([long, short, long]), 20))
    assert [list(prompt) for prompt, _ in found] == [short[0]]


def test_a_stop_ends_the_run_and_the_places_are_free_again(model: LlamaModel) -> None:
    prompts = _prompts(model, 0.0)
    passes = iter([False] * 2)
    with closing(ManyReplies(model, 3, 256, STRICT)) as replies:
        assert not list(replies.replies(iter(prompts), 40, stop=lambda: next(passes, True)))
        again = {tuple(prompt): reply for prompt, reply in replies.replies(iter(prompts), 10)}
    assert again == {tuple(prompt): _plain(model, prompt, sampler, 10) for prompt, sampler in prompts}
