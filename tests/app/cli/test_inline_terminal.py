"""The short session on a real terminal, with the bundled model: what was said stays above the shell's next prompt."""

from pathlib import Path

import pytest
from tests.app.bundled_program import PROGRAM
from tests.app.terminal import Terminal

pytestmark = pytest.mark.program

ALTERNATE = b"\x1b[?1049h"


@pytest.mark.slow
def test_what_was_said_stays_in_the_terminal(tmp_path: Path) -> None:
    with Terminal(*PROGRAM, "--inline", "--chat", "short", home=tmp_path, size=(80, 30)) as terminal:
        terminal.shows("Enter sends")
        terminal.type("Tell me about the sea.\r")
        terminal.shows("\u203a Tell me about the sea.", "Esc leaves")
        terminal.type("\x11")
        assert terminal.ended() == 0
        shown = terminal.shown
        assert ALTERNATE not in terminal.sent and terminal.as_before
        above, _, below = shown.partition("\u203a Tell me about the sea.")
        assert "started" in above and below.split("left 0.")[0].strip() and "Enter sends" not in shown
