"""The command palette under keys that come faster than it is drawn."""

import random

import pytest
from tests.app.tui.conftest import Open

KEYS = ("a", "q", "x", "backspace", "up", "down", "pageup", "pagedown", "home", "end", "tab", "escape")
FAST = (
    ("pageup", "pageup"),
    ("x", "pageup", "pagedown", "pageup"),
    ("down", "enter", "enter", "enter"),
    ("escape", "escape", "a", "enter"),
    ("escape", "a"),
    ("a", "escape", "escape"),
)


@pytest.mark.slow
@pytest.mark.parametrize("keys", FAST, ids=" ".join)
async def test_keys_that_come_at_once(open_chat: Open, keys: tuple[str, ...]) -> None:
    async with open_chat() as chat:
        for wait in (0.0, 0.3):
            await chat.press("ctrl+p")
            await chat.pilot.pause(wait)
            for key in keys:
                chat.app.simulate_key(key)
            await chat.pilot.pause(0.4)
            assert chat.alive


@pytest.mark.parametrize("seed", range(2))
async def test_random_keys(open_chat: Open, seed: int) -> None:
    chance = random.Random(seed)
    async with open_chat() as chat:
        for _ in range(4):
            await chat.press("ctrl+p")
            await chat.pilot.pause(chance.choice((0.0, 0.1, 0.3)))
            for _ in range(8):
                chat.app.simulate_key(chance.choice(KEYS))
                await chat.pilot.pause(chance.choice((0.0, 0.0, 0.05)))
            assert chat.alive


@pytest.mark.slow
@pytest.mark.parametrize("key", ["enter", "escape"])
@pytest.mark.parametrize("opens", ["ctrl+r", "f1", "ctrl+o", "ctrl+d", "ctrl+l", "f8", "f9", "ctrl+p"])
async def test_a_screen_is_closed_once(open_chat: Open, opens: str, key: str) -> None:
    async with open_chat() as chat:
        await chat.say("hello")
        await chat.press(opens)
        for _ in range(4):
            chat.app.simulate_key(key)
        await chat.until(lambda: not chat.app.message_queue_size)
        assert chat.alive and chat.app.screen_stack[0] is chat.screen
