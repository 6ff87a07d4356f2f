import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.app import terminal as emulated

from slipstream.app.cli.launcher import RESET, run

pytestmark = pytest.mark.program

PARENT = "import sys; from slipstream.app.cli.launcher import run; sys.exit(run([sys.executable, '-c', sys.argv[1]]))"
SPOIL = """
import os, signal, sys, termios, tty
tty.setraw(0)
os.write(1, b"\\x1b[?1049h\\x1b[?1003h\\x1b[?25l")
"""
READY = 'os.write(1, b"READY")\n'


class Terminal:
    def __init__(self, child: str) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, child], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        self.output = b""

    def read_until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not done():
            assert time.monotonic() < end, self.output
            if select.select([self.master], [], [], 0.05)[0]:
                self.output += os.read(self.master, 65536)

    def finish(self) -> int:
        self.read_until(lambda: self.process.poll() is not None)
        while select.select([self.master], [], [], 0)[0]:
            self.output += os.read(self.master, 65536)
        return self.process.returncode

    def modes(self) -> object:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        os.close(self.master)
        os.close(self._slave)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_killed_child_leaves_the_terminal_as_it_was(number: signal.Signals) -> None:
    terminal = Terminal(f"{SPOIL}os.kill(os.getpid(), {int(number)})")
    assert terminal.finish() == 128 + number and terminal.output.endswith(RESET)
    assert terminal.modes() == terminal.before
    terminal.close()


@pytest.mark.parametrize(
    "start", ["", "\\x1b", "\\x1b[", "\\x1b[38;2;1", "\\x1b[?2026", "\\x1b(", "\\x1b]52;c;aGVs", "\\xe2\\x94"]
)
def test_a_child_killed_amid_a_sequence_leaves_the_screen_as_it_was(start: str, tmp_path: Path) -> None:
    child = f"{SPOIL}os.write(1, b'\\x1b[>1u{start}')\nos.kill(os.getpid(), 9)"
    with emulated.Terminal(sys.executable, "-c", PARENT, child, home=tmp_path) as terminal:
        assert terminal.ended() == 137
        assert terminal.as_before, terminal.state


def test_a_clean_end_writes_nothing() -> None:
    terminal = Terminal("print('hello')")
    assert terminal.finish() == 0 and terminal.output == b"hello\r\n"
    terminal.close()


@pytest.mark.parametrize("ends", ["sys.exit('no luck')", "os.kill(os.getpid(), 9)"])
def test_a_terminal_that_is_as_it_was_is_left_alone(ends: str) -> None:
    terminal = Terminal(
        f"import os, sys, termios, tty\nbefore = termios.tcgetattr(0){SPOIL.replace('import', '#')}"
        f"termios.tcsetattr(0, termios.TCSANOW, before)\n{ends}"
    )
    assert terminal.finish() in (1, 137)
    assert RESET not in terminal.output and terminal.modes() == terminal.before
    terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_child(number: signal.Signals) -> None:
    child = (
        "import os, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('told', flush=True), sys.exit(7)))\n{READY}"
        "time.sleep(30)"
    )
    terminal = Terminal(child)
    terminal.read_until(lambda: b"READY" in terminal.output)
    terminal.process.send_signal(number)
    assert terminal.finish() == 7 and b"told" in terminal.output
    terminal.close()


def test_interrupt_is_a_key_of_the_child() -> None:
    child = f"import os, sys\n{READY}sys.exit(4 if sys.stdin.readline() == 'go\\n' else 5)"
    terminal = Terminal(child)
    terminal.read_until(lambda: b"READY" in terminal.output)
    terminal.process.send_signal(signal.SIGINT)
    terminal.process.send_signal(signal.SIGQUIT)
    os.write(terminal.master, b"go\n")
    assert terminal.finish() == 4
    terminal.close()


def test_without_a_terminal_the_command_only_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert run([sys.executable, "-c", "raise SystemExit(5)"]) == 5
        assert run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137
