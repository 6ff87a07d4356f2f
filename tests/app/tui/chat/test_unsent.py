"""What was typed and not sent stays with its chat, and outlives the program; Ctrl-C clears it and Up brings it back."""

import json
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import press_alt
from textual.widgets import Input

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.page import Unsent
from slipstream.app.tui.drafters.screen import DraftersScreen


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
