"""Chats that are kept: opened again, and long ones."""

import time
from collections.abc import Awaitable
from functools import partial

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from textual.widgets import Static

from slipstream.app.chats.records import Figures, StoredChat, StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.speed import Speed
from slipstream.app.tui.chat.commands import CommandRequest
from slipstream.app.tui.chat.transcript import AT_ONCE


def kept(store: ChatStore, question: str, answer: str, turns: int = 1) -> str:
    chat = store.create().id
    for turn in range(turns):
        number = f" {turn}" if turns > 1 else ""
        store.add_user(chat, question + number)
        reply = store.begin_reply(chat, model="m", fingerprint="f1", drafter="lookup", seed=1)
        speed = Speed(tok_per_s=9.5, drafted=9, acceptance=0.5, plain_tok_per_s=7.6, tokens=30)
        figures = Figures(speed, prompt_tokens=40, ttft_ms=1500.0)
        store.finish_reply(reply.id, text=answer + number, tokens=[1, 2, 3], reason="stop", figures=figures)
    return chat


async def test_a_chat_is_reopened_with_its_figures_and_goes_on(open_chat: Open, store: ChatStore) -> None:
    chat_id = kept(store, "What is a fox?", "A small animal.")
    async with open_chat(Script("Red."), chat=chat_id) as chat:
        assert chat.texts() == ["What is a fox?", "A small animal."]
        assert chat.footnote() == (
            "lookup 1.2x faster · 9.5 tok/s instead of 7.6 · saved 0.8 s · 30 tokens · first token 1.5 s"
        )
        await chat.until(lambda: "/ 1,024" in chat.shown())  # what is kept, then what is counted
        assert "What is a fox?" in chat.shown().splitlines()[0]
        await chat.say("Which colour?")
        (request,) = chat.engine.asked
        said = [("What is a fox?", []), ("A small animal.", [1, 2, 3]), ("Which colour?", [])]
        assert [(m.content, m.tokens) for m in request.messages] == said
        assert len(store.messages(chat_id)) == 4


async def test_a_new_chat_stops_the_reply_first(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script("one two three four five six seven eight", hold=5), Script("five")) as chat:
        await chat.begin("x", 5)
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.idle() and chat.texts() == [])
        await chat.say("y")
        assert chat.texts() == ["y", "five"]
        assert len(store.list_chats()) == 2
        assert [m.content for m in chat.engine.asked[1].messages] == ["y"]


@pytest.mark.slow
async def test_a_long_chat_shows_its_end_and_more_on_demand(open_chat: Open, store: ChatStore) -> None:
    turns = 20
    chat_id = kept(store, "Question", "Answer", turns)
    async with open_chat(chat=chat_id) as chat:
        assert len(chat.texts()) == AT_ONCE and chat.texts()[-1] == f"Answer {turns - 1}"
        await chat.press("ctrl+home")
        assert f"{2 * turns - AT_ONCE} earlier messages" in chat.shown()
        await chat.press("pageup")
        await chat.until(lambda: len(chat.texts()) == 2 * AT_ONCE)
        await chat.until(lambda: f"Question {turns - AT_ONCE // 2}" in chat.shown().splitlines()[2])  # stays in place
        for shown in (3 * AT_ONCE, 2 * turns):
            await chat.press("ctrl+home")
            await chat.pilot.click(".earlier")
            await chat.until(partial(chat.shows, shown))
        assert chat.texts() == [f"{who} {turn}" for turn in range(turns) for who in ("Question", "Answer")]
        assert not chat.screen.query_one(".earlier").display


@pytest.mark.slow
async def test_the_oldest_messages_leave_a_long_session(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.app.tui.chat.transcript.MOST_SHOWN", 4)
    async with open_chat(Script("ok")) as chat:
        for number in range(4):
            await chat.say(f"m{number}")
        assert chat.texts() == ["m2", "ok", "m3", "ok"]
        await chat.press("ctrl+home", "pageup")
        await chat.until(lambda: len(chat.texts()) == 8)
        assert chat.texts()[0] == "m0"


@pytest.mark.slow
async def test_a_place_far_up_a_long_chat_is_gone_to_and_left_again(open_chat: Open, store: ChatStore) -> None:
    turns = 30
    chat_id = kept(store, "Question", "Answer", turns)
    store.show(store.messages(chat_id)[20].id)
    async with open_chat(Script("Newest."), chat=chat_id) as chat:
        at = store.messages(chat_id)[20]
        await chat.screen.chats.open(chat_id, at.id)
        await chat.until(lambda: chat.shows(AT_ONCE) and "Question 10" in chat.shown())
        assert f"{2 * turns - AT_ONCE - 18} later messages" in str(chat.screen.query_one(".later", Static).content)
        assert chat.texts()[2] == at.content
        await chat.press("ctrl+end")
        await chat.until(lambda: chat.texts()[-1] == f"Answer {turns - 1}")
        await chat.screen.chats.open(chat_id, at.id)
        await chat.until(lambda: chat.texts()[2] == at.content)
        while chat.screen.query_one(".later").display:
            shown = len(chat.texts())
            chat.screen.transcript.scroll_end(animate=False)
            await chat.until(lambda: chat.screen.transcript.is_vertical_scroll_end)
            await chat.press("pagedown")
            await chat.until(partial(chat.shows, min(shown + AT_ONCE, 2 * turns - 18)))
        assert chat.texts()[-1] == f"Answer {turns - 1}"
        await chat.screen.chats.open(chat_id, at.id)
        await chat.say("And now?")  # from the middle, at once at the end
        assert chat.texts()[-2:] == ["And now?", "Newest."] and chat.texts()[-3] == f"Answer {turns - 1}"


MESSAGES = 10_000
MOST_S = 2.0  # processor seconds of each action


def long_chat(store: ChatStore) -> str:
    chat = StoredChat("longest", "A long chat", 1.0, 2.0, "")
    rows = [
        StoredMessage(
            id=number, chat=chat.id, parent=number - 1 if number > 1 else None,
            role="assistant" if number % 2 == 0 else "user", content=f"message {number}", tokens=[], model="",
            status="done", drafter="", seed=None, figures=None, reason="stop" if number % 2 == 0 else "",
            created=float(number),
        )
        for number in range(1, MESSAGES + 1)
    ]  # fmt: skip
    [kept] = store.add_chats([(chat, [(row, 0) for row in rows])])
    return kept.id


async def within(what: Awaitable[object]) -> None:
    start = time.process_time()
    await what
    taken = time.process_time() - start
    assert taken < MOST_S, f"{taken:.1f} s"


async def deleted(chat: Driver, number: str, store: ChatStore) -> None:
    chat.screen.sidebar.post_message(CommandRequest("manage", ("delete", store.get(number))))
    await chat.until(lambda: not chat.texts())


@pytest.mark.slow
async def test_ten_thousand_messages_are_an_ordinary_chat(open_chat: Open, store: ChatStore) -> None:
    number = long_chat(store)
    async with open_chat(Script("Blue.")) as chat:
        await within(chat.screen.chats.open(number))
        await chat.until(lambda: f"message {MESSAGES}" in chat.texts())
        await within(chat.press(*"hello"))  # no key costs what the chat costs
        chat.screen.prompt.put("")
        await within(chat.say("Is it?"))
        assert chat.texts()[-1] == "Blue."
        chat.engine.scripts = [Script("Red.")]
        await within(chat.press("f5"))
        await chat.until(lambda: chat.texts()[-1] == "Red." and chat.idle())
        await chat.press("ctrl+up")
        await within(chat.press("left"))
        await chat.until(lambda: chat.texts()[-1] == "Blue.")
        await within(deleted(chat, number, store))
        assert not store.list_chats()
