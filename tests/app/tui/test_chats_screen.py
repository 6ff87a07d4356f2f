"""Chats that are kept: list, open, rename, delete, and long ones."""

from functools import partial

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import Script
from textual.widgets import Input

from slipstream.app.chats.records import Figures
from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.protocol import Speed
from slipstream.app.tui.screens.chats import ChatsScreen, ago
from slipstream.app.tui.screens.dialogs import ConfirmScreen, RenameScreen
from slipstream.app.tui.widgets.transcript import AT_ONCE, Earlier


def kept(store: ChatStore, question: str, answer: str, turns: int = 1) -> str:
    chat = store.create().id
    for turn in range(turns):
        number = f" {turn}" if turns > 1 else ""
        store.add_user(chat, question + number)
        reply = store.begin_reply(chat, model="m", fingerprint="f1", drafter="lookup", seed=1)
        speed = Speed(tok_per_s=9.5, acceptance=0.5, speedup=1.25, tokens=3)
        figures = Figures(speed, prompt_tokens=40, ttft_ms=1500.0)
        store.finish_reply(reply.id, text=answer + number, tokens=[1, 2, 3], reason="stop", figures=figures)
    return chat


async def test_a_chat_is_reopened_with_its_figures_and_goes_on(open_chat: Open, store: ChatStore) -> None:
    chat_id = kept(store, "What is a fox?", "A small animal.")
    async with open_chat(Script("Red."), chat=chat_id) as chat:
        assert chat.texts() == ["What is a fox?", "A small animal."]
        assert chat.footnote() == "3 tokens · 9.5 tok/s · lookup 50 % · 1.2x · first token 1.5 s"
        assert "43 / 1,024" in chat.shown()
        assert "What is a fox?" in chat.shown().splitlines()[0]
        await chat.say("Which colour?")
        (request,) = chat.engine.asked
        assert [(m.content, m.tokens) for m in request.messages] == [
            ("What is a fox?", []),
            ("A small animal.", [1, 2, 3]),
            ("Which colour?", []),
        ]
        assert len(store.messages(chat_id)) == 4


async def test_the_list_opens_searches_renames_and_deletes(open_chat: Open, store: ChatStore) -> None:
    foxes, seas = kept(store, "About foxes", "Fox."), kept(store, "About the sea", "Sea.")
    async with open_chat() as chat:
        await chat.press("ctrl+o")
        assert isinstance(chat.app.screen, ChatsScreen)
        assert "About foxes" in chat.shown()
        assert foxes in chat.shown()
        await chat.press("down", "enter")
        await chat.until(lambda: chat.texts() == ["About foxes", "Fox."])

        await chat.press("ctrl+o", *"SEA")
        await chat.until(lambda: foxes not in chat.shown())
        await chat.press("enter")
        await chat.until(lambda: chat.texts() == ["About the sea", "Sea."])

        await chat.press("ctrl+o", "ctrl+r")
        assert isinstance(chat.app.screen, RenameScreen)
        chat.app.screen.query_one(Input).value = "Waves"
        await chat.press("enter")
        await chat.until(lambda: "Waves" in chat.shown())
        assert store.get(seas).title == "Waves"
        await chat.press("escape")
        await chat.until(lambda: "Waves" in chat.shown().splitlines()[0])

        await chat.press("ctrl+o", "ctrl+d")
        assert isinstance(chat.app.screen, ConfirmScreen)
        await chat.press("escape")
        assert len(store.list_chats()) == 2
        await chat.press("ctrl+d", "enter")
        await chat.until(lambda: len(store.list_chats()) == 1)
        await chat.press("escape")
        await chat.until(lambda: chat.texts() == [])  # the open chat was deleted: a new one begins
        assert [known.id for known in store.list_chats()] == [foxes]


async def test_an_empty_list_says_so(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.press("ctrl+o")
        assert "No chats yet" in chat.shown()
        await chat.press("enter", "ctrl+d", "ctrl+r", "down")
        assert isinstance(chat.app.screen, ChatsScreen)


async def test_a_new_chat_stops_the_reply_first(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("one two three four five six seven eight", hold=5), Script("five")) as chat:
        await chat.say("x", wait=False)
        await chat.until(lambda: chat.screen._reply is not None and len(chat.screen._reply.text) >= 5)
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.idle() and chat.texts() == [])
        await chat.say("y")
        assert chat.texts() == ["y", "five"]
        assert len(store.list_chats()) == 2
        assert [m.content for m in chat.engine.asked[1].messages] == ["y"]


async def test_a_long_chat_shows_its_end_and_more_on_demand(open_chat: Open, store: ChatStore) -> None:
    turns = 20
    chat_id = kept(store, "Question", "Answer", turns)
    async with open_chat(chat=chat_id) as chat:
        assert len(chat.texts()) == AT_ONCE
        assert chat.texts()[-1] == f"Answer {turns - 1}"
        await chat.press("ctrl+home")
        assert f"{2 * turns - AT_ONCE} earlier messages" in chat.shown()
        await chat.press("pageup")
        await chat.until(lambda: len(chat.texts()) == 2 * AT_ONCE)
        await chat.until(lambda: f"Question {turns - AT_ONCE // 2}" in chat.shown().splitlines()[2])  # stays in place
        for shown in (3 * AT_ONCE, 2 * turns):
            await chat.press("ctrl+home")
            await chat.pilot.click(Earlier)
            await chat.until(partial(chat.shows, shown))
        assert chat.texts() == [f"{who} {turn}" for turn in range(turns) for who in ("Question", "Answer")]
        assert not chat.screen.query_one(Earlier).display


async def test_the_oldest_messages_leave_a_long_session(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.tui.widgets.transcript.MOST_SHOWN", 4)
    async with open_chat(Script("ok")) as chat:
        for number in range(4):
            await chat.say(f"m{number}")
        assert chat.texts() == ["m2", "ok", "m3", "ok"]
        await chat.press("ctrl+home", "pageup")
        await chat.until(lambda: len(chat.texts()) == 8)
        assert chat.texts()[0] == "m0"


def test_ago() -> None:
    times = [5, 90, 3600, 26 * 3600, 10 * 24 * 3600]
    assert [ago(seconds) for seconds in times] == ["just now", "2 min", "1 h", "1 day", "10 days"]
