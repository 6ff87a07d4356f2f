"""The chat in a real terminal: whatever ends it, the terminal is as it was, and the text is kept.

All endings in all states: ``python -m tests.soak.signals``.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.app.terminal import Terminal
from tests.app.tui.endings import ENDINGS, LAUNCH, STATES, Ending, faults


@pytest.mark.parametrize(
    ("ending", "state"),
    [pytest.param(ending, STATES[at % 3], id=f"{ending.name}-{STATES[at % 3]}") for at, ending in enumerate(ENDINGS)],
)
def test_the_terminal_is_as_it_was_and_the_text_is_kept(ending: Ending, state: str, tmp_path: Path) -> None:
    assert faults(ending, state, tmp_path) == []


FROZEN = """
import asyncio, sys
from pathlib import Path
from slipstream.app.tui import terminal
from slipstream.app.tui.screens.chat import ChatScreen
from tests.app import played_chat

async def freeze(chat):
    chat.strip.display = False
    await asyncio.Event().wait()

terminal.PATIENCE = 0.5
ChatScreen.action_help = freeze
sys.exit(played_chat.main(Path(sys.argv[1])))
"""


def test_a_chat_that_waits_for_ever_ends_all_the_same(tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", LAUNCH, "-c", FROZEN, str(tmp_path), home=tmp_path) as terminal:
        terminal.shows("ready", "promise")
        terminal.type("\x1bOP")
        terminal.until(lambda: "promise" not in terminal.shown)
        os.kill(int((tmp_path / "process").read_text()), signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM
        while terminal.read(0.05):
            pass
        assert terminal.as_before
