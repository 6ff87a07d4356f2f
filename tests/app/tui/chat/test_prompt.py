"""Long text in the prompt, and what was said before."""

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from textual import events

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.attach import MOST_LINES, Folds, is_long
from slipstream.app.tui.chat.chat_switcher import RecallScreen
from slipstream.app.tui.chat.message import Question
from slipstream.app.tui.chat.prompt import PromptBox

LONG = "\n".join(f"line {number} of a long text that was pasted" for number in range(10_000))
MARK = "[pasted 10,000 lines, 409 kB]"


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
