"""A chat of 10,000 messages in one line: opened, branched, typed in and deleted on the screen, each within seconds."""

import time
from collections.abc import Awaitable

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script

from slipstream.app.chats.records import StoredChat, StoredMessage
from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.commands import CommandRequest

MESSAGES = 10_000
MOST_S = 2.0  # processor seconds of each action


def long_chat(store: ChatStore) -> str:
    chat = StoredChat("longest", "A long chat", 1.0, 2.0, "")
    rows = [
        StoredMessage(
            id=number,
            chat=chat.id,
            parent=number - 1 if number > 1 else None,
            role="assistant" if number % 2 == 0 else "user",
            content=f"message {number}",
            tokens=[],
            model="",
            status="done",
            drafter="",
            seed=None,
            figures=None,
            reason="stop" if number % 2 == 0 else "",
            created=float(number),
        )
        for number in range(1, MESSAGES + 1)
    ]
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
