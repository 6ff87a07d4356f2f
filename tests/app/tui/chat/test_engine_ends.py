"""What the chat shows of an engine that ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.app.engine.disturbed import SIGNALS, bundled
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol import Done, Generate, Prefilling, Sampling, Stepped
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.app import ChatApp
from slipstream.models.errors import EngineDiedError

pytestmark = pytest.mark.program

TEXT = "The sea is wide and blue."
END = EngineDiedError("the engine ended while nothing was asked of it: it was killed.", "The next message starts it.")


class Killed(Engine):
    """An engine that is killed once, amid its first reply."""

    def __init__(self, log: Path, number: signal.Signals) -> None:
        super().__init__(log)
        self._number: signal.Signals | None = number

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        for event in super().reply(generate):
            yield event
            if isinstance(event, Stepped) and self._number and self.process_id:
                os.kill(self.process_id, self._number)
                self._number = None


async def test_an_end_is_shown_though_nothing_was_asked_and_the_next_message_starts_it(open_chat: Open) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("Hello")
        chat.engine.end(END)
        await chat.until(lambda: bool(chat.notices()))
        assert chat.notices() == [
            "✗ The engine ended while nothing was asked of it: it was killed.\n  The next message starts it."
        ]
        assert "the next message starts it again" in chat.shown()
        await chat.say("Again")
        assert len(chat.engine.loads) == 2
        assert chat.texts() == ["Hello", TEXT, "Again", TEXT]


async def test_what_was_changed_for_it_is_said(open_chat: Open) -> None:
    remark = "the engine was started again with a context of 512 tokens, since memory probably ran out."
    engine = ScriptedEngine([Script(TEXT)], loaded=replace(LOADED, remark=remark))
    async with open_chat(engine=engine) as chat:
        await chat.say("Hello")
        assert any("with a context of 512 tokens" in notice for notice in chat.notices())


async def test_a_drafter_that_fails_is_named(open_chat: Open) -> None:
    at_load, in_reply = {"medusa": "its file is cut short"}, {"draft": "memory ran out"}
    engine = ScriptedEngine([Script(TEXT, failed=in_reply), Script(TEXT)], loaded=replace(LOADED, failed=at_load))
    async with open_chat(engine=engine) as chat:
        await chat.say("Hello")
        await chat.until(lambda: len(chat.notices()) == 2)
        assert chat.notices() == [
            "i Drafter medusa is left out of this chat: its file is cut short.\n  The text stays the same.",
            "i Drafter draft is left out of this chat: memory ran out.\n  The text stays the same.",
        ]
        await chat.say("Again")
        assert len(chat.notices()) == 2 and chat.texts() == ["Hello", TEXT, "Again", TEXT]


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_real_engine_that_is_killed_amid_a_reply(
    store: ChatStore, tmp_path: Path, number: signal.Signals
) -> None:
    settled = SettingsFile(tmp_path / "settings.toml", {"ahead.read": False})
    with closing(Killed(tmp_path / "engine.log", number)) as engine:
        load = bundled(tmp_path / "derived")
        app = ChatApp(engine, load, store, None, Sampling(seed=7), models=ScriptedModels, settings=settled)
        async with app.run_test() as pilot:
            chat = Driver(app, pilot, ScriptedEngine(), store, [])
            await chat.until(lambda: chat.screen.model.loaded is not None)
            chat.screen.prompt.put("Tell me a long story about the sea.")
            await chat.press("enter")
            await chat.until(lambda: bool(chat.notices()))
            assert number.name in chat.notices()[0]
            written = chat.texts()[1]
            assert written and chat.footnote().endswith("interrupted")
            (kept,) = store.list_chats()
            assert store.messages(kept.id)[1].content == written
            assert store.messages(kept.id)[1].status == "interrupted"
            chat.screen.prompt.put("Hello")
            await chat.press("enter")
            await chat.until(lambda: len(chat.texts()) == 4 and chat.idle())
            assert chat.texts()[3] == store.messages(kept.id)[3].content != ""
            smaller = any("with a context of" in notice for notice in chat.notices())
            assert smaller == (number == signal.SIGKILL)
