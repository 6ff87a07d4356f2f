"""The race on the screen: it borrows the chat's model, shows both replies, and ends with Esc."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.app.tui.conftest import Open
from tests.app.tui.scripted import ScriptedEngine

from slipstream.app.bench.race_events import RaceEvent, RaceFrame, Racer, RaceResult, RaceStart, encoded
from slipstream.app.tui.race import RaceScreen

START = RaceStart("mini", "lookup", "Tell me a story.", 1, 100, 200.0, "same text")
FRAME = RaceFrame(Racer("The keeper climbed", 60, 0.01), Racer("The keeper", 40, 0.01))
FINISH = RaceResult(
    RaceFrame(Racer("The end.", 100, 0.2, True), Racer("The end.", 100, 0.3, True)), False, None, 0.7, 2.0
)
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
print(sys.argv[1], flush=True)
if sys.argv[2]:
    open(sys.argv[2]).read()
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    return scripted(monkeypatch, [START, FRAME, FINISH])


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def scripted(
    patch: pytest.MonkeyPatch, events: Sequence[RaceEvent], gate: str = "", on_stop: str = "signal.default_int_handler"
) -> list[list[str]]:
    asked: list[list[str]] = []

    def command(arguments: Sequence[str], nice: int) -> list[str]:
        asked.append(list(arguments))
        program = PROGRAM.replace("signal.default_int_handler", on_stop)
        return [sys.executable, "-c", program, "\n".join(json.dumps(encoded(event)) for event in events), gate]

    patch.setattr("slipstream.app.tui.jobs.command", command)
    return asked


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
async def test_a_race_is_shown_and_ends(open_chat: Open, asked: list[list[str]], size: tuple[int, int]) -> None:
    async with open_chat(size=size) as chat:
        chat.screen.prompt.put("/race Tell me a story.")
        await chat.press("enter")
        await chat.until(lambda: isinstance(chat.app.screen, RaceScreen) and chat.app.screen.picture.finish is not None)
        words = chat.shown()
        assert "lookup is 1.5x faster here: 0.20 s instead of 0.30 s." in words and "Text identical ✓" in words
        assert words.count("100 tokens") == 3 and "The end." in words
        request = json.loads(asked[0][1])
        assert asked[0][0] == "race" and request["drafter"] == "draft"
        assert [message["content"] for message in request["messages"]] == ["Tell me a story."]
        assert request["load"]["model"] == chat.screen.model.load.model
        assert chat.engine.closed and chat.screen.model.loaded is None
        await chat.press("r")
        await chat.until(lambda: len(asked) == 2)
        await chat.until(lambda: chat.screen.jobs.job is None)
        await chat.press("escape")
        await chat.until(lambda: chat.screen.model.loaded is not None)
        await chat.say("x")
        assert len(chat.engine.asked) == 1


async def test_a_race_is_on_the_last_question_unless_one_is_given(open_chat: Open, asked: list[list[str]]) -> None:
    async with open_chat() as chat:
        await chat.say("About foxes")
        await chat.until(lambda: not chat.screen.reply.busy_with)
        chat.screen.prompt.put("/race")
        await chat.press("enter")
        await chat.until(lambda: bool(asked))
        assert [message["content"] for message in json.loads(asked[0][1])["messages"]] == ["About foxes"]
        await chat.until(lambda: chat.screen.jobs.job is None)
        await chat.press("escape")
        await chat.until(lambda: chat.screen.model.loaded is not None)
        chat.screen.model.draft_with("none")
        await chat.press("ctrl+d", "down", "v")  # the drafters' screen offers one, too
        await chat.until(lambda: len(asked) == 2)
        assert isinstance(chat.app.screen, RaceScreen)
        assert chat.screen.model.drafter == "none" != json.loads(asked[1][1])["drafter"]


@pytest.mark.parametrize("more", [(), ("signal.SIG_IGN",)], ids=["at once", "late"])
async def test_escape_ends_a_race_and_the_chat_says_so(
    open_chat: Open, monkeypatch: pytest.MonkeyPatch, gate: Path, more: tuple[str, ...]
) -> None:
    scripted(monkeypatch, [START, FRAME], str(gate), *more)
    async with open_chat() as chat:
        chat.screen.prompt.put("/race")
        await chat.press("enter")
        await chat.until(lambda: isinstance(chat.app.screen, RaceScreen) and "60 tokens" in chat.shown())
        await chat.press("escape")
        if not more:
            await chat.until(lambda: chat.screen.jobs.job is None and chat.screen.model.loaded is not None)
            return
        await chat.until(lambda: chat.app.screen is chat.screen)
        assert "ending the race" in chat.shown() and "Esc ends it" not in chat.shown()
        assert chat.screen.jobs.job is not None
        chat.screen.prompt.put("/race Once more.")
        await chat.press("enter")
        await chat.until(lambda: bool(chat.toasts()))
        assert chat.screen.prompt.text == "/race Once more."
        gate.write_text("")
        await chat.until(lambda: chat.screen.jobs.job is None and chat.screen.model.loaded is not None)
        assert not chat.screen.prompt.border_subtitle


async def test_a_race_that_cannot_begin_yet_stays_in_the_prompt(open_chat: Open, asked: list[list[str]]) -> None:
    async with open_chat(engine=ScriptedEngine(hold_load=True)) as chat:
        await chat.until(lambda: chat.screen.engine.busy)
        chat.screen.prompt.put("/race Tell me a story.")
        await chat.press("enter")
        await chat.until(lambda: "The model is being loaded. Race when it is done." in chat.toasts())
        assert chat.screen.prompt.text == "/race Tell me a story." and not asked
        chat.engine.go_load()
        await chat.until(lambda: chat.screen.model.loaded is not None)
        await chat.press("enter")
        await chat.until(lambda: bool(asked))
        assert chat.screen.prompt.text == ""
