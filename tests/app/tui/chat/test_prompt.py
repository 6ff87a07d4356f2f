"""Long text in the prompt, what is too large for it, what was said before, and what was typed and not sent."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver, press_alt
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from textual import events
from textual.widgets import Input

import slipstream.models
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.prompt import PromptBuilder
from slipstream.app.protocol.events import check_size, least_tokens
from slipstream.app.protocol.requests import Message
from slipstream.app.tui.chat.attach import MOST_LINES, Folds, is_long
from slipstream.app.tui.chat.chat_switcher import RecallScreen
from slipstream.app.tui.chat.message import Question
from slipstream.app.tui.chat.page import Unsent
from slipstream.app.tui.chat.prompt import PromptBox
from slipstream.app.tui.drafters.screen import DraftersScreen
from slipstream.models.chat_template.template import CHATML, ChatTemplate
from slipstream.models.errors import ContextFullError
from slipstream.models.llama.model import LlamaModel
from slipstream.models.types import Token

LONG = "\n".join(f"line {number} of a long text that was pasted" for number in range(10_000))
MARK = "[pasted 10,000 lines, 409 kB]"
LARGE = "the sea is wide " * 125_000


async def paste(chat: Driver, text: str) -> PromptBox:
    chat.screen.prompt.post_message(events.Paste(text))
    await chat.pilot.pause()
    return chat.screen.prompt


async def sent(chat: Driver) -> str:
    asked = len(chat.engine.asked)
    await chat.press("enter")
    await chat.until(lambda: len(chat.engine.asked) > asked and chat.idle())
    return chat.engine.asked[-1].messages[-1].content


@pytest.mark.slow
async def test_a_long_paste_is_folded_and_sent_whole(open_chat: Open, store: ChatStore) -> None:
    async with open_chat() as chat:
        await chat.press("a", "space")
        prompt = await paste(chat, LONG)
        await chat.press("space", "z")
        assert prompt.text == f"a {MARK} z"
        assert MARK in chat.shown()
        assert prompt.message == f"a {LONG} z"
        assert await sent(chat) == f"a {LONG} z"
        assert store.prompts() == [f"a {LONG} z"]
        (question,) = chat.screen.query(Question)
        assert "of 10,000 lines" in str(question.content) and question.size.height < 100
        await chat.press("ctrl+up", "ctrl+up", "space")
        assert str(question.content) == f"a {LONG} z"
        await chat.press("escape")
        await chat.press("up")  # folded again
        assert len(prompt.text) < 60 and prompt.message == f"a {LONG} z"


async def test_a_mark_goes_whole_and_comes_back(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = await paste(chat, LONG)
        await paste(chat, LONG[1:])  # as many lines, other text
        first, second = MARK, MARK[:-1] + ", 2]"
        assert prompt.text == first + second
        await chat.press("left", "left", "x")  # typed in the middle of a mark: behind it
        assert prompt.text == f"{first}{second}x" and prompt.message == f"{LONG}{LONG[1:]}x"
        await chat.press("backspace", "backspace")
        assert prompt.text == first
        await chat.press("ctrl+z")
        assert prompt.message.startswith(LONG + LONG[1:])
        prompt.put("")
        await paste(chat, "\n".join("abc" * 20))
        await chat.press("tab")
        assert prompt.text == "\n".join("abc" * 20)
        prompt.put("")
        await paste(chat, "two\nlines\n")
        assert prompt.text == "two\nlines"  # without an empty line below


def test_marks_stand_for_their_own_text() -> None:
    folds = Folds()
    one, two, same = folds.fold("a" * 5000), folds.fold("b" * 5000), folds.fold("a" * 5000)
    assert one == same != two
    assert folds.unfold(f"{two} and {one}") == "b" * 5000 + " and " + "a" * 5000
    inside = folds.fold(f"{one} is a mark", "file [x]")
    assert inside == "[file (x)]"
    assert folds.unfold(inside) == f"{one} is a mark" and folds.at(f"x {one}", 3) == (2, 2 + len(one))
    assert folds.at("x", 0) is None
    assert not is_long("x\n" * (MOST_LINES - 1))
    assert is_long("x\n" * MOST_LINES)


async def test_what_was_refused_or_set_aside_keeps_its_long_text(open_chat: Open) -> None:
    async with open_chat(Script("ok")) as chat:
        await chat.say("short")
        prompt = await paste(chat, LONG)
        await chat.press("ctrl+up", "ctrl+up", "e")
        assert prompt.text == "short"
        await chat.press("escape")
        assert prompt.message == LONG
        prompt.give_back(f"/before {LONG}")
        assert prompt.message == f"/before {LONG}\n{LONG}"
        prompt.put("")
        prompt.give_back(f"{LONG} what is this?")  # the question stays readable beside the mark
        assert prompt.text.startswith("[pasted ") and prompt.text.endswith("] what is this?")
        assert prompt.message == f"{LONG} what is this?"


@pytest.mark.slow
async def test_earlier_prompts_are_searched_as_they_are_typed(open_chat: Open, store: ChatStore) -> None:
    for text in ("the sea is wide", "/etc is a folder", "a wide river\nof two lines", "the sea is wide"):
        store.add_user(store.create().id, text)
    async with open_chat() as chat:
        await chat.press("ctrl+r")
        screen = chat.on(RecallScreen)
        assert screen.found == ["the sea is wide", "a wide river\nof two lines", "/etc is a folder"]
        await chat.press(*"wide")
        assert len(screen.found) == 2
        await chat.press("down")
        assert "2 of 3" in chat.shown()
        await chat.press("enter")
        await chat.until(lambda: chat.screen.prompt.text != "")
        assert chat.screen.prompt.text == "a wide river\nof two lines"
        await chat.press("ctrl+r", *"ETC", "enter")
        await chat.until(lambda: chat.screen.prompt.text == "//etc is a folder")
        assert chat.screen.prompt.message == "/etc is a folder"
        await chat.press("ctrl+r", *"nothing", "enter", "ctrl+r", "escape")
        assert chat.app.screen is chat.screen and chat.screen.prompt.message == "/etc is a folder"


async def test_every_chat_has_its_own_text(open_chat: Open, store: ChatStore) -> None:
    async with open_chat() as chat:
        await chat.say("first")
        chat.screen.prompt.put("for the first")
        await chat.press("alt+n")
        assert chat.screen.prompt.text == ""
        chat.screen.prompt.put("for a new one")
        await chat.screen.chats.open(store.list_chats()[0].id)
        assert chat.screen.prompt.text == "for the first"
        await chat.press("alt+n")
        assert chat.screen.prompt.text == "for a new one"
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle())
        assert chat.screen.prompt.text == ""


async def test_a_first_message_that_was_typed_slowly_waits_in_no_other_chat(open_chat: Open) -> None:
    async with open_chat() as chat:
        chat.screen.prompt.put("first")
        chat.screen.page.keep_prompt()  # as the clock does
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.asked) == 1 and chat.idle())
        await chat.press("alt+n")
        assert chat.screen.prompt.text == ""


@pytest.mark.slow
async def test_a_restart_brings_it_back(open_chat: Open, store: ChatStore) -> None:
    file = store.database.path.with_name("unsent.json")
    async with open_chat() as chat:
        await chat.say("first")
        chat.screen.prompt.put("half a thought")
    (kept,) = store.list_chats()
    assert json.loads(file.read_text()) == {kept.id: "half a thought"} and file.stat().st_mode & 0o777 == 0o600
    async with open_chat() as chat:
        assert chat.screen.prompt.text == ""
    async with open_chat(chat=kept.id) as chat:
        assert chat.screen.prompt.text == "half a thought"
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.asked) == 1 and chat.idle())
    assert not file.exists()


def test_texts_of_deleted_chats_leave_the_file_and_a_damaged_one_has_none(tmp_path: Path) -> None:
    unsent = Unsent(tmp_path / "unsent.json")
    unsent.put("a", "text")
    unsent.put("b", "other")
    unsent.keep(lambda chat: True)
    Unsent(tmp_path / "unsent.json").keep(lambda chat: chat == "b")
    assert json.loads((tmp_path / "unsent.json").read_text()) == {"b": "other"}
    for broken in ("", "[1]", "{", '{"a": 3}'):
        (tmp_path / "unsent.json").write_text(broken)
        assert Unsent(tmp_path / "unsent.json").of("a") == ""
    unsent = Unsent(None)
    unsent.put("a", "text")
    unsent.keep(lambda chat: True)
    assert unsent.of("a") == "text"


@pytest.mark.slow
async def test_ctrl_p_and_ctrl_n_go_through_earlier_prompts(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.say("one")
        await chat.say("two")
        chat.screen.prompt.put("typed")
        await chat.press("ctrl+p")
        assert chat.screen.prompt.text == "two"
        await chat.press("ctrl+p")
        assert chat.screen.prompt.text == "one"
        await chat.press("ctrl+n")
        assert chat.screen.prompt.text == "two"
        await chat.press("ctrl+n")
        assert chat.screen.prompt.text == "typed" and len(chat.texts()) == 4  # no new chat was begun
        await chat.press("alt+p")
        assert type(chat.app.screen).__name__ == "Palette"


async def test_an_unknown_alt_key_types_nothing(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.press("a")
        await press_alt(chat.pilot, "d", "7")
        await chat.press("b")
        assert chat.screen.prompt.text == "ab"
        await press_alt(chat.pilot, "t")  # bound
        assert chat.toasts()
        await chat.press("ctrl+a")
        await press_alt(chat.pilot, "d")
        await chat.press("c")
        assert chat.screen.prompt.text == "cab"


@pytest.mark.parametrize("keys", [("ctrl+o",), ("ctrl+r",), ("alt+p",), ("f9", "down", "enter")])
async def test_an_unknown_alt_key_types_nothing_into_other_inputs(open_chat: Open, keys: tuple[str, ...]) -> None:
    async with open_chat() as chat:
        await chat.press(*keys)
        await chat.until(lambda: isinstance(chat.app.focused, Input))
        line = chat.app.focused
        assert isinstance(line, Input)
        before = line.value
        await press_alt(chat.pilot, "d", "t")  # Alt-T is a key of the chat alone
        await chat.press("x")
        assert line.value == f"{before}x"


async def test_ctrl_d_deletes_to_the_right_as_in_a_shell_else_opens_the_drafters(open_chat: Open) -> None:
    async with open_chat() as chat:
        prompt = chat.screen.prompt
        await chat.press(*"sea", "ctrl+j", "x", "up", "end", "left", "ctrl+d")
        assert prompt.text == "se\nx" and chat.app.screen is chat.screen
        await chat.press("ctrl+d")  # the end of the line
        assert prompt.text == "sex" and "^d Drafters" in chat.shown()
        await chat.press("end", "ctrl+d")
        await chat.until(lambda: isinstance(chat.app.screen, DraftersScreen))
        await chat.press("ctrl+d")
        await chat.until(lambda: chat.app.screen is chat.screen)
        await chat.press("home", "ctrl+o", "ctrl+d")  # not in the prompt
        await chat.until(lambda: isinstance(chat.app.screen, DraftersScreen))
        assert prompt.text == "sex"


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
