"""A chat of which a part never answers again still ends when it is told to, and the terminal is as it was."""

import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.app.terminal import Terminal, gone

from slipstream.app.chats.store import ChatStore

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


def test_a_chat_that_never_answers_ends_by_a_signal(tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", WAITS_FOR_EVER, home=tmp_path) as terminal:
        terminal.shows("process ", ".")
        process = int(terminal.shown.split("process ")[1].split(".")[0])
        terminal.type("x")
        terminal.shows("never again")
        os.kill(process, signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM and terminal.as_before
        assert gone(process)


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
