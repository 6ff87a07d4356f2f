"""The text that heads are trained on: the model's own answers, with second turns, in the ids of its own template."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.training.gguf_file import BUNDLED

from slipstream.drafters.training import texts
from slipstream.models.errors import UsageError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.llama.target import ContextOptions

OPTIONS = ContextOptions(max_rows=16, max_leaves=1, threads=1)


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
