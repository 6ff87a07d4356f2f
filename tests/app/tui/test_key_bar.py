"""The keys at the bottom are whole at every width."""

from dataclasses import replace

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from textual.widgets._footer import FooterKey

from slipstream.app.tui.keys import KeyBar


def bottom(chat: Driver) -> str:
    return chat.shown().splitlines()[-1]


def whole(chat: Driver) -> bool:
    bar = chat.app.screen.query_one(KeyBar)
    shown = [f"{key.key_display} {key.description}" for key in bar.query(FooterKey)]
    return bool(shown) and bottom(chat).split() == " ".join(shown).split()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
async def test_help_stop_and_quit_are_whole_at_every_width(open_chat: Open, width: int) -> None:
    async with open_chat(Script("The sea is wide.", hold=4), size=(width, 24)) as chat:
        await chat.until(lambda: whole(chat) and "f1 Help" in bottom(chat) and "^q Quit" in bottom(chat))
        await chat.say("x", wait=False)
        await chat.until(lambda: "Esc Stop" in bottom(chat))
        assert whole(chat) and "f1 Help" in bottom(chat) and "^q Quit" in bottom(chat)
        chat.engine.go()
        await chat.until(chat.idle)


@pytest.mark.parametrize("key", ["f9", "ctrl+l", "f8", "ctrl+d"])
async def test_the_way_back_is_whole_on_the_smallest_screen(open_chat: Open, key: str) -> None:
    async with open_chat(size=(40, 12)) as chat:
        await chat.press(key)
        await chat.until(lambda: "Esc Back" in bottom(chat) and whole(chat))


async def test_the_device_gives_way_before_the_title(open_chat: Open) -> None:
    engine = ScriptedEngine([Script("Blue.")], loaded=replace(LOADED, device="CPU, 1 thread"))
    async with open_chat(engine=engine) as chat:
        await chat.say("Why is the sea blue")
        assert "Why is the sea blue" in chat.shown().splitlines()[0]
        assert "slipstream-mini · CPU, 1 thread" not in chat.shown().splitlines()[0]
        await chat.pilot.resize_terminal(100, 24)
        await chat.until(lambda: "slipstream-mini · CPU, 1 thread" in chat.shown().splitlines()[0])
        assert "Why is the sea blue" in chat.shown().splitlines()[0]
