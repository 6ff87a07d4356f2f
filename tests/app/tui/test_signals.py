"""The chat in a real terminal: whatever ends it, the terminal is as it was, and the text is kept.

All endings in all states: ``python -m tests.soak.signals``.
"""

import signal
import sys
from pathlib import Path

import pytest
from tests.app.terminal import Terminal
from tests.app.tui.endings import ENDINGS, LAUNCH, STATES, Ending, faults

pytestmark = pytest.mark.program
STARTING = """
import os, signal, sys
from pathlib import Path
from slipstream.app.tui.app import ChatApp
from tests.app.played_chat import main
mounted = ChatApp.on_mount
def on_mount(app):
    mounted(app)
    os.kill(os.getpid(), signal.SIGHUP)
ChatApp.on_mount = on_mount
sys.exit(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "state"),
    [pytest.param(ending, STATES[at % 3], id=f"{ending.name}-{STATES[at % 3]}") for at, ending in enumerate(ENDINGS)],
)
def test_the_terminal_is_as_it_was_and_the_text_is_kept(ending: Ending, state: str, tmp_path: Path) -> None:
    assert faults(ending, state, tmp_path) == []


def test_a_signal_before_the_first_frame_ends_the_chat_without_an_error(tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", LAUNCH, "-c", STARTING, str(tmp_path), home=tmp_path) as terminal:
        assert terminal.ended() == 128 + signal.SIGHUP and terminal.as_before
        assert b"NoMatches" not in terminal.sent and b"Traceback" not in terminal.sent
