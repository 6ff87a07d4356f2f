"""A chat whose screen never answers again still ends when it is told to, and the terminal is as it was."""

import os
import signal
import sys
from pathlib import Path

from tests.app.terminal import Terminal, gone

WAITS_FOR_EVER = """
import asyncio, os, sys
from textual.app import App
from textual.widgets import Static
from slipstream.app.launcher import run

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
        assert terminal.ended() == 128 + signal.SIGTERM
        assert terminal.as_before
        assert gone(process)
