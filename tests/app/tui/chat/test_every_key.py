"""Every key on every state of the prompt: no exception, and no text that cannot be brought back."""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import Script
from textual import events, on
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets.text_area import Selection

from slipstream.app.chats.store import ChatStore
from slipstream.app.tui.chat.prompt import PromptBox

pytestmark = pytest.mark.slow

LONG = "\n".join(f"line {number} of a text that was pasted" for number in range(200))
LINES = "first line\nsecond word here\n\nlast"
MOVING = ("up", "down", "left", "right", "home", "end", "pageup", "pagedown")
CHANGING = ("delete", "backspace", "enter", "tab", "insert", "space", "escape")
KEYS = (
    *(f"ctrl+{letter}" for letter in string.ascii_lowercase),
    *(f"alt+{letter}" for letter in "bdfu"),
    *(f"{held}{key}" for held in ("", "ctrl+", "shift+", "ctrl+shift+") for key in MOVING),
    *(f"{held}{key}" for held in ("", "ctrl+", "alt+") for key in CHANGING),
    *("f1", "f6", "f7", "f12"),
    *("ctrl+shift+k", "ctrl+underscore", "ctrl+at", "ctrl+backslash", "x", "slash", "at", "left_square_bracket", "é"),
)
UNDO_STEPS = 6


@dataclass(frozen=True)
class State:
    text: str = ""
    begin: tuple[int, int] = (0, 0)
    end: tuple[int, int] | None = None
    pastes: Sequence[str] = ()
    keys: Sequence[str] = ()


STATES = {
    "empty": State(),
    "a space": State(" ", (0, 1)),
    "one line, at its end": State("some words", (0, 10)),
    "one line, at its beginning": State("some words", (0, 0)),
    "one line, amid": State("some words", (0, 4)),
    "lines, at the beginning": State(LINES, (0, 0)),
    "lines, at the end of the first": State(LINES, (0, 10)),
    "lines, at the beginning of the second": State(LINES, (1, 0)),
    "lines, on an empty one": State(LINES, (2, 0)),
    "lines, at the end": State(LINES, (3, 4)),
    "a new line at the end": State("words\n", (1, 0)),
    "nothing but new lines": State("\n\n\n", (2, 0)),
    "a wrapped line": State("word " * 100, (0, 250)),
    "wide characters": State("界界 👩\u200d👩\u200d👧 e\u0301\u0301 界", (0, 4)),
    "a selection": State(LINES, (0, 2), (2, 0)),
    "a selection from its end": State(LINES, (3, 2), (0, 3)),
    "all selected": State(LINES, (0, 0), (3, 4)),
    "behind two folds": State("a ", (0, 2), pastes=(LONG, LONG[1:])),
    "in a fold": State("a ", (0, 2), pastes=(LONG, LONG[1:]), keys=("left", "left", "left")),
    "before the folds": State("a ", (0, 2), pastes=(LONG, LONG[1:]), keys=("home",)),
    "a part of a fold selected": State("a ", (0, 2), pastes=(LONG,), keys=("left", *("shift+left",) * 5)),
    "the list of commands": State(keys=("slash",)),
    "the second command": State(keys=("slash", "s", "down")),
    "the list of files": State("a ", (0, 2), keys=("at",)),
    "recalled": State(keys=("up",)),
    "recalled and moved": State(keys=("up", "up", "left")),
    "undone": State("a b c", (0, 5), keys=("ctrl+w", "ctrl+z")),
}


class Box(App[None]):
    ENABLE_COMMAND_PALETTE = False  # its Enter would choose a command of the app

    def __init__(self) -> None:
        super().__init__()
        self.prompt = PromptBox(["sent before", "and this\nof two lines", "a command"])
        self.prompt.examples = ["an example"]
        self.sent: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.prompt.choices
        yield self.prompt

    @on(PromptBox.MessageSent)
    def _sent(self, message: PromptBox.MessageSent) -> None:
        self.sent.append(message.text)

    async def bring(self, state: State, pilot: Pilot[None]) -> str:
        """Brings the prompt into a state; returns all that stands in it."""
        self.prompt.put("")
        self.prompt.put(state.text)
        self.prompt.selection = Selection(state.begin, state.end or state.begin)
        for paste in state.pastes:
            self.prompt.post_message(events.Paste(paste))
        await pilot.press(*state.keys)
        return self.prompt.message


@pytest.fixture(autouse=True)
def short_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 0.005)  # twice a key; what is drawn does not matter here


@pytest.mark.parametrize("state", STATES)
async def test_every_key_keeps_the_text(state: str) -> None:
    app = Box()
    async with app.run_test() as pilot:
        for key in KEYS[list(STATES).index(state) % 2 :: 2]:  # every key in every other state
            if key == "ctrl+q":
                continue
            app.sent.clear()
            text = await app.bring(STATES[state], pilot)
            await pilot.press(key)
            assert app.is_running, key
            for _ in range(UNDO_STEPS):
                if text in app.prompt.message or text in app.sent:
                    break
                app.prompt.undo()
            assert text in app.prompt.message or text in app.sent, key


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("running", [False, True])
async def test_random_keys_end_no_chat(open_chat: Open, store: ChatStore, seed: int, running: bool) -> None:
    chance = random.Random(seed)
    keys = [key for key in KEYS if key not in ("ctrl+q", "ctrl+c", "f6")]
    async with open_chat(Script("The sea is wide.", hold=4 if running else None)) as chat:
        if running:
            await chat.begin("x", 4)
        for _ in range(12):
            pressed = chance.choices(keys, k=10)
            await chat.press(*pressed)
            assert chat.app.is_running, pressed
            if chance.random() < 0.3:
                chat.app.post_message(events.Paste(chance.choice([LONG, LINES, "", "@", "/"])))


async def test_a_found_prompt_leaves_what_was_typed_one_undo_away(open_chat: Open, store: ChatStore) -> None:
    store.add_user(store.create().id, "said before")
    async with open_chat() as chat:
        await chat.press(*"half", "ctrl+r", "enter")
        await chat.until(lambda: chat.screen.prompt.text == "said before")
        await chat.press("ctrl+z")
        assert chat.screen.prompt.text == "half"
