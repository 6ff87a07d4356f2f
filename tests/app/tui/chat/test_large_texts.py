"""What cannot fit is refused by its size, at once, and stays in the prompt."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from textual import events

import slipstream.models
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.protocol.events import check_size, least_tokens
from slipstream.app.protocol.requests import Message
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import ContextFullError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import Token

LARGE = "the sea is wide " * 125_000


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    folder = Path(slipstream.models.__path__[0]) / "bundled"
    return LlamaModel(folder / "slipstream-mini-q8_0.gguf", vocabulary_only=True)


@given(st.lists(st.sampled_from([" ", "\n", "\t", "the", "sea", "▁", "界", "é", "aaaa", "Once upon", "\0", "﷽"])))
@settings(max_examples=200)
def test_no_text_makes_fewer_tokens_than_its_size_says(model: LlamaModel, words: list[str]) -> None:
    text = "".join(words)
    assert least_tokens(text, model.token_bytes) <= len(model.tokenize(text, False))


def test_every_name_in_the_vocabulary_is_within_the_bound(model: LlamaModel) -> None:
    assert model.token_bytes > 1
    for token in range(model.n_vocab):
        name = model.piece(token).decode("utf-8", "ignore")
        assert least_tokens(name, model.token_bytes) <= 1


def test_a_message_is_refused_before_it_becomes_tokens_where_there_is_a_bound() -> None:
    def tokenize(text: str, special: bool, written: object = (), *, joins: bool = False) -> list[Token]:
        raise AssertionError(text[:20])

    builder = PromptBuilder(ChatTemplate(CHATML), tokenize, [], token_bytes=15)
    with pytest.raises(ContextFullError, match=r"at least 100,000 tokens, but the context holds 2,048"):
        builder.build([Message("user", LARGE)], 2048)
    assert builder.beginning([Message("user", LARGE)], 2048).size == 100_000
    check_size(LARGE, 0, 8)
    with pytest.raises(ContextFullError):
        check_size("x" * 8, 1, 8)
    check_size("x" * 7 + " \n\t" * 99, 1, 8)


@pytest.mark.parametrize(("longest", "advice"), [(0, "--context"), (16, "--context"), (8, "a longer context")])
def test_a_larger_context_is_advised_where_the_model_has_one(longest: int, advice: str) -> None:
    with pytest.raises(ContextFullError) as refused:
        check_size("x" * 8, 1, 8, longest)
    assert advice in refused.value.hint and ("--context" in refused.value.hint) == (advice == "--context")


@pytest.mark.parametrize("text", [LARGE, LARGE.replace(" ", "\n"), "x" * 2_000_000, "海" * 700_000])
async def test_a_large_paste_is_refused_and_stays(open_chat: Open, store: ChatStore, text: str) -> None:
    engine = ScriptedEngine([Script("ok")], loaded=replace(LOADED, token_bytes=15))
    async with open_chat(engine=engine) as chat:
        chat.screen.prompt.post_message(events.Paste(text))
        await chat.until(lambda: bool(chat.screen.prompt.text))
        await chat.press("enter")
        await chat.until(lambda: bool(chat.notices()))
        assert "cannot fit" in chat.notices()[0] and chat.screen.prompt.message == text
        assert engine.asked == [] and store.list_chats() == []
        chat.screen.prompt.put("short")
        await chat.press("enter")
        await chat.until(lambda: chat.idle() and len(engine.asked) == 1)
