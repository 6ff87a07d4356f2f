"""Every screen in every small window, and random sizes while a reply is written: no exception."""

import random
from pathlib import Path

import pytest
from tests.app.terminal import Terminal
from tests.app.tui.conftest import Open
from tests.app.tui.endings import Chat
from tests.app.tui.scripted import Script

pytestmark = pytest.mark.slow

TEXT = "The sea is **wide**.\n\n```python\nprint('a long line')\n```\n\n| a | b |\n|---|---|\n| c | d |\n\n- one\n"
SCREENS = {
    "chat": (), "colours": ("f3",), "drafts": ("f4",), "chats": ("ctrl+o",), "drafters": ("ctrl+d",),
    "models": ("ctrl+l",), "bench": ("f8",), "settings": ("f9",), "help": ("f1",), "recall": ("ctrl+r",),
    "palette": ("alt+p",), "delete": ("ctrl+o", "delete"), "text": (*"some words", "ctrl+j", *"more"),
    "commands": ("/",), "message": ("ctrl+up",), "theme": (*"/theme", "enter"), "system": (*"/system", "enter"),
}  # fmt: skip
SMALL = [(width, height) for width in (1, 3, 6, 12) for height in (1, 6)]
EDGE = [(20, 5), (21, 12), (40, 5)]


@pytest.mark.parametrize("screen", SCREENS)
async def test_every_screen_bears_every_size(open_chat: Open, screen: str) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("hello")
        await chat.press(*SCREENS[screen])
        for size in (*SMALL, *EDGE):
            await chat.pilot.resize_terminal(*size)
            await chat.press("down")
            assert chat.app.is_running, size
            chat.shown()
        await chat.pilot.resize_terminal(80, 24)
        await chat.press("escape", "escape")
        assert chat.app.is_running and len(chat.shown().splitlines()) == 24


@pytest.mark.parametrize("seed", range(2))
async def test_random_sizes_while_a_reply_is_written(open_chat: Open, seed: int) -> None:
    chance = random.Random(seed)
    async with open_chat(Script(TEXT * 30, hold=20)) as chat:
        await chat.begin("x", 20)
        chat.engine.go()
        for _ in range(40):
            width = chance.choice((chance.randint(1, 12), chance.randint(12, 60), chance.randint(60, 200)))
            await chat.pilot.resize_terminal(width, chance.choice((chance.randint(1, 6), chance.randint(6, 60))))
            await chat.press(
                chance.choice(("f3", "f4", "ctrl+o", "a", "pageup", "ctrl+home", "f1", "escape", "ctrl+j"))
            )
            assert chat.app.is_running
        await chat.until(chat.idle)


def test_a_window_too_small_says_so_and_waits(tmp_path: Path) -> None:
    chat = Chat(tmp_path)
    with chat.terminal as terminal:
        chat.bring("idle")
        for size in ((10, 3), (5, 4)):
            _resized(terminal, *size)
            terminal.until(lambda: terminal.shown.split() == ["too", "small"])
        _resized(terminal, 80, 24)
        terminal.shows("half a thought")
        _resized(terminal, 3, 1)
        terminal.type("\x11")
        assert terminal.ended() == 0 and terminal.as_before


def _resized(terminal: Terminal, columns: int, lines: int) -> None:
    terminal.resize(columns, lines)
    terminal.read(0.2)
