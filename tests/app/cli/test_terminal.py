"""The terminal that other tests look at: it sees what a program leaves behind, and leaves no program behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.app.terminal import ROOT, Terminal, gone

pytestmark = pytest.mark.program

STARTS = """
import sys, time
from pathlib import Path
from tests.app.hostile import on_a_terminal
from tests.app.terminal import Terminal

SLEEPS = f"import os, time; open({sys.argv[1]!r}, 'w').write(str(os.getpid())); time.sleep(600)"
if sys.argv[2] == "hostile":
    on_a_terminal(SLEEPS, home=Path("/nowhere"))
else:
    Terminal(sys.executable, "-c", SLEEPS, home=Path("/nowhere")).until(lambda: False, 600)
"""


@pytest.mark.parametrize("how", ["hostile", "emulated"])
def test_a_program_dies_with_the_test_that_started_it(how: str, tmp_path: Path) -> None:
    number = tmp_path / "number"
    test = subprocess.Popen([sys.executable, "-c", STARTS, str(number), how], cwd=ROOT)
    while not (number.exists() and number.read_text()):
        assert test.poll() is None
    os.kill(test.pid, signal.SIGKILL)
    test.wait()
    assert gone(int(number.read_text()))


@pytest.mark.parametrize(
    "spoils",
    [
        r"print('\x1b[?1049h', end='')", r"print('\x1b[?1003h', end='')", r"print('\x1b[?2004h', end='')",
        r"print('\x1b[?25l', end='')", r"print('\x1b[?7l', end='')", r"print('\x1b[>25u', end='')",
        r"print('\x1b[<u', end='')", "import tty; tty.setraw(0)",
    ],
)  # fmt: skip
def test_what_a_program_leaves_behind_is_seen(spoils: str, tmp_path: Path) -> None:
    with Terminal(sys.executable, "-c", spoils, home=tmp_path) as terminal:
        assert terminal.ended() == 0 and not terminal.as_before
