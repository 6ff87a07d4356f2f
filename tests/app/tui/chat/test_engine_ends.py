"""What the chat shows of an engine or another machine that ends or waits, and how a chat ends of which a part hangs."""

import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.app.engine.disturbed import SIGNALS, bundled
from tests.app.terminal import Terminal, gone
from tests.app.tui.conftest import Open
from tests.app.tui.driver import Driver
from tests.app.tui.scripted import LOADED, Script, ScriptedEngine
from tests.app.tui.scripted_models import ScriptedModels

from slipstream.app.chats.store import ChatStore
from slipstream.app.engine.process.client import Engine
from slipstream.app.protocol.events import Done, Prefilling, Stepped
from slipstream.app.protocol.requests import Generate, Load, Sampling
from slipstream.app.settings.file import SettingsFile
from slipstream.app.tui.app import ChatApp
from slipstream.models.errors import EngineDiedError

pytestmark = pytest.mark.program

TEXT = "The sea is wide and blue."
END = EngineDiedError("the engine ended while nothing was asked of it: it was killed.", "The next message starts it.")
CONTEXT: Final = 8192
LONG: Final = Sampling(temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
"""Replies of 2,000 tokens: however late the first one is read here, most of them are still to be written."""
WAITS_FOR_EVER = """
import asyncio, os, sys
from textual.app import App
from textual.widgets import Static
from slipstream.app.cli.launcher import run

if "--stuck" not in sys.argv:
    sys.exit(run([sys.executable, *sys.orig_argv[1:], "--stuck"]))

from slipstream.app.tui import terminal

terminal.PATIENCE = 0.2


class Stuck(App[int]):
    def get_driver_class(self):
        return terminal.chat_driver(super().get_driver_class())

    def compose(self):
        yield Static(f"process {os.getpid()}.")

    def on_mount(self):
        terminal.leave_cleanly(self)

    async def on_key(self):
        self.query_one(Static).update("never again")
        await asyncio.Event().wait()


app = Stuck()
app.run()
sys.exit(app.return_code or 0)
"""
HANGS_AT_ITS_END = """
import sys, threading, time
from pathlib import Path
from slipstream.app.cli.launcher import run

if "--chat" not in sys.argv:
    sys.exit(run([sys.executable, *sys.orig_argv[1:], "--chat"]))

from tests.app.tui.scripted import Script, ScriptedEngine
from slipstream.app.chats.store import ChatStore
from slipstream.app.protocol.requests import Load
from slipstream.app.tui import terminal
from slipstream.app.tui.app import ChatApp
from slipstream.app.tui.engine_service import EngineService

terminal.PATIENCE = 1.0
hangs = sys.argv[2]


class Engine(ScriptedEngine):
    def close(self):
        super().close()
        if hangs == "engine":
            time.sleep(3600)

    def stop(self, request):
        if hangs == "stop":
            time.sleep(3600)
        super().stop(request)


if hangs == "thread":
    EngineService.prepare = lambda room, make: room.run_worker(lambda: time.sleep(3600), thread=True)
if hangs == "interpreter":
    threading.Thread(target=time.sleep, args=(3600,)).start()
store = ChatStore(Path(sys.argv[1]) / "chats.db")
app = ChatApp(Engine([Script("word " * 50, hold=20)]), Load("mini.gguf"), store)
app.run()
store.close()
sys.exit(app.return_code or 0)
"""
MISSING = "Without pi:50052: connection refused."


class Struck(Engine):
    """An engine to which something is done once, amid its first reply."""

    def __init__(self, log: Path, strike: Callable[[int], object]) -> None:
        super().__init__(log)
        self._strike: Callable[[int], object] | None = strike

    def reply(self, generate: Generate) -> Iterator[Prefilling | Stepped | Done]:
        for event in super().reply(generate):
            yield event
            if isinstance(event, Stepped) and self._strike and self.process_id:
                self._strike(self.process_id)
                self._strike = None


@asynccontextmanager
async def real_chat(engine: Engine, load: Load, store: ChatStore, folder: Path) -> AsyncIterator[Driver]:
    settled = SettingsFile(folder / "settings.toml", {"ahead.read": False})
    app = ChatApp(engine, load, store, None, LONG, models=ScriptedModels, settings=settled)
    async with app.run_test() as pilot:
        chat = Driver(app, pilot, ScriptedEngine(), store, [])
        await chat.until(lambda: chat.screen.model.loaded is not None)
        yield chat


async def ask(chat: Driver, text: str) -> None:
    chat.screen.prompt.put(text)
    await chat.press("enter")


async def ask_and_stop(chat: Driver, text: str) -> None:
    count = len(chat.texts())
    await ask(chat, text)
    await chat.until(lambda: len(chat.texts()) == count + 2 and chat.texts()[-1] != "")
    await chat.press("escape")
    await chat.until(chat.idle)


async def test_an_end_is_shown_though_nothing_was_asked_and_the_next_message_starts_it(open_chat: Open) -> None:
    async with open_chat(Script(TEXT)) as chat:
        await chat.say("Hello")
        chat.engine.end(END)
        await chat.until(lambda: bool(chat.notices()))
        assert chat.notices() == [
            "✗ The engine ended while nothing was asked of it: it was killed.\n  The next message starts it."
        ]
        assert "the next message starts it again" in chat.shown()
        await chat.press("ctrl+d")
        await chat.until(lambda: chat.toasts() == ["The model is not loaded. The next message loads it."])
        await chat.say("Again")
        assert len(chat.engine.loads) == 2 and chat.texts() == ["Hello", TEXT, "Again", TEXT]


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
async def test_a_real_engine_is_killed_amid_a_reply(store: ChatStore, tmp_path: Path, number: signal.Signals) -> None:
    load = replace(bundled(tmp_path / "derived"), n_ctx=CONTEXT)
    with closing(Struck(tmp_path / "engine.log", lambda process: os.kill(process, number))) as engine:
        async with real_chat(engine, load, store, tmp_path) as chat:
            await ask(chat, "Tell me a long story about the sea.")
            await chat.until(lambda: bool(chat.notices()))
            assert number.name in chat.notices()[0]
            written = chat.texts()[1]
            assert written and chat.footnote().endswith("interrupted")
            (kept,) = store.list_chats()
            assert store.messages(kept.id)[1].content == written
            assert store.messages(kept.id)[1].status == "interrupted"
            await ask_and_stop(chat, "Hello")
            assert chat.texts()[3] == store.messages(kept.id)[3].content != ""
            smaller = any("with a context of" in notice for notice in chat.notices())
            assert smaller == (number == signal.SIGKILL)


@pytest.fixture
def copied(tmp_path: Path) -> Load:
    load = replace(bundled(tmp_path / "derived"), n_ctx=CONTEXT)
    return replace(load, model=str(shutil.copyfile(load.model, tmp_path / "own.gguf")))


async def test_a_model_file_that_is_deleted_is_told_once(store: ChatStore, tmp_path: Path, copied: Load) -> None:
    with closing(Engine(tmp_path / "engine.log")) as engine:
        async with real_chat(engine, copied, store, tmp_path) as chat:
            await ask_and_stop(chat, "One")
            Path(copied.model).unlink()
            await ask_and_stop(chat, "Two")
            await chat.until(lambda: bool(chat.notices()))
            await ask_and_stop(chat, "Three")
            [notice] = chat.notices()
            assert "own.gguf was deleted or moved while it was in use." in notice.replace("\n", "")
            assert "Replies go on with the model as it was loaded." in notice
            assert len(chat.texts()) == 6 and all(chat.texts())


async def test_a_model_file_that_is_cut_short_amid_a_reply(store: ChatStore, tmp_path: Path, copied: Load) -> None:
    with closing(Struck(tmp_path / "engine.log", lambda _: os.truncate(copied.model, 4096))) as engine:
        async with real_chat(engine, copied, store, tmp_path) as chat:
            await ask(chat, "One")
            await chat.until(lambda: bool(chat.notices()))
            [notice] = chat.notices()
            assert "the model file changed or its disk went away (SIGBUS)" in notice
            assert chat.texts()[1] and chat.footnote().endswith("interrupted")
            await ask(chat, "Two")
            await chat.until(lambda: len(chat.notices()) == 2 and chat.idle())
            assert "own.gguf is cut short" in chat.notices()[1]


def test_a_chat_that_never_answers_ends_by_a_signal(tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", WAITS_FOR_EVER, home=tmp_path) as terminal:
        terminal.shows("process ", ".")
        process = int(terminal.shown.split("process ")[1].split(".")[0])
        terminal.type("x")
        terminal.shows("never again")
        os.kill(process, signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM and terminal.as_before
        assert gone(process)


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["engine", "stop", "thread", "interpreter"])
@pytest.mark.parametrize("state", ["idle", "streaming", "dialog"])
def test_ctrl_q_ends_a_chat_of_which_a_part_hangs(hangs: str, state: str, tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", HANGS_AT_ITS_END, str(tmp_path), hangs, home=tmp_path) as terminal:
        terminal.shows("is ready")
        terminal.type("hello")
        terminal.shows("hello")
        if state != "idle":
            terminal.type("\r")
            terminal.shows("word word")
        if state == "dialog":
            terminal.type("\x1bOP")
            terminal.shows("Esc closes")
        terminal.type("\x11")
        assert terminal.ended() == 0 and terminal.as_before
    with closing(ChatStore(tmp_path / "chats.db")) as store:
        said = [message.content for chat in store.list_chats() for message in store.messages(chat.id)]
    assert said[:1] == ([] if state == "idle" else ["hello"])
    assert state == "idle" or said[1].startswith("word word")


@pytest.mark.slow
def test_suspend_gives_the_terminal_to_the_shell_until_fg(tmp_path: Path) -> None:
    shell = '"$@"; printf "stopped %s." $?; read -r _; fg; exit $?'
    program = (sys.executable, "-c", HANGS_AT_ITS_END, str(tmp_path), "nothing")
    with Terminal("sh", "-mc", shell, "sh", *program, home=tmp_path) as terminal:
        terminal.shows("is ready")
        terminal.type("/suspend\r")
        terminal.shows(f"stopped {128 + signal.SIGSTOP}.")
        terminal.type("\n")
        terminal.shows("is ready")
        terminal.type("still here")
        terminal.shows("still here")
        terminal.type("\x11")
        assert terminal.ended() == 0 and terminal.as_before


async def test_the_top_bar_and_the_chat_say_which_machines_hold_the_model(open_chat: Open) -> None:
    loaded = replace(LOADED, device="CUDA 5, mac:50052 10 of 15 layers", machines=["mac:50052"], remark=MISSING)
    async with open_chat(engine=ScriptedEngine(loaded=loaded), size=(140, 40)) as chat:
        await chat.until(lambda: "CUDA 5, mac:50052 10 of 15 layers" in chat.shown())
        await chat.until(lambda: MISSING in chat.shown())


async def test_a_machine_that_keeps_a_reply_waiting_is_named(open_chat: Open) -> None:
    async with open_chat(Script("The sea is wide and blue.", hold=5)) as chat:
        await chat.say("x", wait=False)
        await chat.until(lambda: bool(chat.engine.asked))
        chat.engine.wait("mac:50052")
        await chat.until(lambda: chat.toasts() == ["Waiting for mac:50052. Esc stops."])
        chat.engine.go()
        await chat.until(chat.idle)


async def test_a_load_that_waits_for_a_silent_machine_can_be_stopped(open_chat: Open) -> None:
    engine = ScriptedEngine(hold_load=True)
    async with open_chat(engine=engine) as chat:
        await chat.until(lambda: bool(engine.loads))
        await chat.press("escape")
        assert not engine.stopped
        engine.wait("mac:50052")
        await chat.until(lambda: "waiting for mac:50052 · Esc stops" in chat.shown())
        await chat.press("escape")
        await chat.until(lambda: bool(engine.stopped))
        engine.go_load()
        await chat.until(chat.idle)
        await chat.press("escape")
        assert len(engine.stopped) == 1
