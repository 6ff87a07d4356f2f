import json
import random
from pathlib import Path

import jinja2
import pytest
from tests.training.llama_file import LlamaFile

from slipstream.drafters.training.family import tokenizer
from slipstream.drafters.training.family.export import write_gguf
from slipstream.drafters.training.family.sources import Message
from slipstream.drafters.training.model import Decoder, Shape

TINY = Shape(width=64, layers=1, heads=1, kv_heads=1, ffn=64, vocabulary=600, context=256)
LETTERS = "aZ09 \n\t\r'’sdé中文ßΩ🙂🧑‍🚀٣½\u00a0\u2003\u3000\x0b\x85|<>_-.,!?$€iment\u0301\ud7ff"
KNOWN = (
    "a\n\n\n\nb", "   lead", "trail   ", "12345 6789", "<|im_end|>", "a<|im_start|>user\nb", "don't WE'LL he's",
    "\n", " ", "", "tab\tand  two", "naïve café", "日本語のテキスト", "<|reserved_3|>", "x\u2028y", "A boat.",
)  # fmt: skip


@pytest.fixture(scope="module")
def gguf(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(Decoder(TINY), prepared / "tokenizer.json", path, "tiny", "tiny", "f32")
    return path


def test_ids_are_those_of_llama_cpp(prepared: Path, gguf: Path) -> None:
    encoder = tokenizer.ChatEncoder(tokenizer.load(prepared / "tokenizer.json"))
    rng = random.Random(11)
    made = ["".join(rng.choices(LETTERS, k=rng.randint(1, 40))) for _ in range(3000)]
    with LlamaFile(gguf) as file:
        for text in (*KNOWN, *made):
            assert encoder.ids(text) == file.ids(text), repr(text)


def test_chat_ids_are_the_template_pieces_with_the_text_apart(prepared: Path, gguf: Path) -> None:
    encoder = tokenizer.ChatEncoder(tokenizer.load(prepared / "tokenizer.json"))
    chat = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="  What is <|im_end|> for?\n"),
        Message(role="assistant", content="Anna finds a boat."),
        Message(role="user", content="s"),
    ]
    marks = [{"role": m["role"], "content": f"\x00{i}\x00"} for i, m in enumerate(chat)]
    with LlamaFile(gguf) as file:
        assert file.template() == tokenizer.CHAT_TEMPLATE
        rendered = jinja2.Environment().from_string(file.template()).render(messages=marks, add_generation_prompt=True)
        ids: list[int] = []
        for i, piece in enumerate(rendered.split("\x00")):
            ids += file.ids(chat[int(piece)]["content"].strip()) if i % 2 else file.ids(piece, special=True)
    assert ids == encoder.prompt(chat)


def test_control_ids_are_fixed_and_marked(prepared: Path, gguf: Path) -> None:
    stored = json.loads((prepared / "tokenizer.json").read_text())["model"]["vocab"]
    assert [stored[token] for token in tokenizer.CONTROL] == list(range(19))
    with LlamaFile(gguf) as file:
        assert file.size == TINY.vocabulary
        for i, token in enumerate(tokenizer.CONTROL):
            assert file.ids(token, special=True) == [i]
            assert len(file.ids(token)) > 1
        assert file.ends_reply(tokenizer.CONTROL.index(tokenizer.END))
        assert not file.ends_reply(20)


def test_only_words_weigh_and_the_reply_ends_with_its_mark(prepared: Path) -> None:
    encoder = tokenizer.ChatEncoder(tokenizer.load(prepared / "tokenizer.json"))
    ids, weights = encoder.encode([Message(role="user", content="Hi!"), Message(role="assistant", content="Hello.")])
    end = tokenizer.CONTROL.index(tokenizer.END)
    last = len(ids) - 1 - ids[::-1].index(end)
    question, reply = encoder.ids("Hi!"), encoder.ids("Hello.")
    assert weights[last] == tokenizer.REPLY_WEIGHT
    assert [i for i, w in zip(ids, weights, strict=True) if w == tokenizer.REPLY_WEIGHT] == [*reply, end]
    assert [i for i, w in zip(ids, weights, strict=True) if w == tokenizer.PROMPT_WEIGHT] == [*question, end]
    assert ids[-1] == 0
    assert weights[-1] == 0
