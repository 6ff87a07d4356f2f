"""``slipstream`` itself, in a terminal, with the real engine and the bundled model."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

PATIENCE = 60.0


class Terminal:
    """A process on a terminal of its own."""

    def __init__(
        self,
        home: Path,
        columns: int,
        lines: int,
        *arguments: str,
        program: Sequence[str] = ("-m", "slipstream.app.cli.main"),
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", "SLIPSTREAM_HOME": str(home)},
            start_new_session=True,
        )
        os.close(slave)
        self.shown = b""

    def read(self, until: bytes = b"") -> bytes:
        """Reads until something was shown, or to the end."""
        end = time.monotonic() + PATIENCE
        while not (until and until in self.shown):
            assert time.monotonic() < end, self.shown[-2000:]
            if not select.select([self.master], [], [], 0.1)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:  # the last process has left the terminal
                break
        return self.shown

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        os.close(self.master)
        return code


def test_a_terminal_too_small_for_the_chat_is_one_clear_line(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, 20, 5)
    shown = terminal.read().decode()
    assert terminal.end() == 1
    assert shown.startswith("slipstream: the terminal has 20x5 characters; the chat needs 40x12.")
    assert shown.count("\n") == 1 and "\x1b" not in shown


@pytest.mark.parametrize(("arguments", "code"), [(["-m", "/no/such.gguf"], 1), (["--drafter", "x"], 2)])
def test_what_cannot_be_loaded_is_one_clear_line_before_any_screen(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    terminal = Terminal(tmp_path, 80, 24, *arguments)
    shown = terminal.read().decode()
    assert terminal.end() == code and shown.count("\n") == 1 and "\x1b" not in shown
