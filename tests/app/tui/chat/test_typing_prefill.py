"""What is typed reaches the engine before it is sent."""

from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import Script
from textual import events

from slipstream.app.chats.store import ChatStore
from slipstream.app.platform.processes import on_battery
from slipstream.app.protocol.requests import Message
from slipstream.app.tui import engine_service as engine_room

TEXT = "The sea is wide and blue."


@pytest.fixture(autouse=True)
def mains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_room, "on_battery", lambda: False)


def read(chat: Driver) -> list[tuple[str, str]]:
    return [(message.role, message.content) for request in chat.engine.prepared[-1:] for message in request.messages]


async def test_what_is_typed_is_read_after_a_pause_and_again_when_it_changed(open_chat: Open) -> None:
    async with open_chat() as chat:
        await chat.until(lambda: bool(chat.engine.prepared))  # nothing is typed: the chat itself
        assert read(chat) == [("user", "")]
        await chat.press(*"Tell me")
        await chat.until(lambda: read(chat) == [("user", "Tell me")])
        await chat.press("backspace", "backspace", *"us")
        await chat.until(lambda: read(chat) == [("user", "Tell us")])
        assert chat.engine.prepared[-1].drafter == "draft" and chat.engine.asked == []
        assert len(chat.engine.prepared) < 13  # not every key


@pytest.mark.parametrize("pasted", ["One\nand two\nand three", "word " * 100])
async def test_a_paste_is_read_at_once(open_chat: Open, monkeypatch: pytest.MonkeyPatch, pasted: str) -> None:
    monkeypatch.setattr("slipstream.app.tui.chat.replying.PAUSE", 1e6)
    async with open_chat() as chat:
        chat.screen.typing.read(1e6)  # so that no pause ends in this test
        await chat.pilot.pause()
        asked = len(chat.engine.prepared)
        chat.screen.prompt.post_message(events.Paste(pasted))
        await chat.until(lambda: len(chat.engine.prepared) > asked)
        assert read(chat) == [("user", pasted)]


@pytest.mark.slow
async def test_the_chat_and_its_replies_are_read_with_it(open_chat: Open, store: ChatStore) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("Hello")
        said = [("user", "Hello"), ("assistant", TEXT)]
        await chat.until(lambda: read(chat) == [*said, ("user", "")])
        assert chat.engine.prepared[-1].messages[1].tokens
        await chat.press(*"And")
        await chat.until(lambda: read(chat) == [*said, ("user", "And")])
        await chat.press("ctrl+c", "ctrl+n", *"Or")
        await chat.until(lambda: read(chat) == [("user", "Or")])
    (kept,) = store.list_chats()
    async with open_chat(chat=kept.id) as chat:  # opened again: read before anything is typed
        await chat.until(lambda: bool(chat.engine.prepared))
        assert read(chat) == [*said, ("user", "")]


async def test_nothing_is_read_while_a_reply_is_written(open_chat: Open) -> None:
    async with open_chat(Script(TEXT, hold=10)) as chat:
        await chat.begin("Hello", 10)
        asked = len(chat.engine.prepared)
        chat.screen.prompt.put("word " * 100)
        await chat.pilot.pause()
        chat.screen.typing.read_now()
        assert not [worker for worker in chat.app.workers if worker.group == "ahead"]
        assert len(chat.engine.prepared) == asked
        chat.engine.go()
        await chat.until(chat.idle)
        await chat.until(lambda: read(chat)[-1:] == [("user", "word " * 100)])


async def test_the_question_that_is_sent_is_what_was_read(open_chat: Open) -> None:
    async with open_chat(Script(""), Script(TEXT)) as chat:
        await chat.say("Hello")  # a reply without a word: the next question joins this one
        await chat.press(*"you")
        await chat.until(lambda: read(chat) == [("user", "Hello\n\nyou")])
        await chat.press("enter")
        await chat.until(lambda: len(chat.engine.asked) == 2 and chat.idle())
        assert chat.engine.asked[1].messages == [Message("user", "Hello\n\nyou")]


async def test_on_battery_nothing_is_read(open_chat: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    def drained() -> bool:
        asked.append(True)
        return True

    monkeypatch.setattr(engine_room, "on_battery", drained)
    async with open_chat() as chat:
        chat.screen.prompt.put("word " * 100)
        await chat.until(lambda: bool(asked) and not [w for w in chat.app.workers if w.group == "ahead"])
        assert chat.engine.prepared and not any(prepare.read for prepare in chat.engine.prepared)  # counted alone


@pytest.mark.parametrize(
    ("supply", "drained"),
    [
        ({"type": "Battery", "status": "Discharging"}, True),
        ({"type": "Battery", "status": "Discharging", "scope": "Device"}, False),  # a mouse
        ({"type": "Battery", "status": "Charging"}, False),
        ({"type": "Mains", "online": "1"}, False),
        ({}, False),
    ],
)
def test_linux_says_whether_a_battery_is_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supply: dict[str, str], drained: bool
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert not on_battery(tmp_path / "none")
    (tmp_path / "BAT0").mkdir()
    for name, value in supply.items():
        (tmp_path / "BAT0" / name).write_text(f"{value}\n")
    assert on_battery(tmp_path) is drained
