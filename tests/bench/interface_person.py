"""Somebody at a terminal with a clock: presses a key, and sees when the screen answers."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Final

from slipstream.app.platform.paths import HOME_VARIABLE
from slipstream.models.errors import SlipstreamError

SIZE: Final = (40, 120)  # lines and columns of the terminal
_PATIENCE: Final = 60.0
_QUIT: Final = b"\x11"


class Person:
    """Sits at a program's terminal."""

    def __init__(self, terminal: int) -> None:
        """Takes our side of the terminal."""
        self._terminal = terminal

    def press(self, keys: bytes, mark: bytes) -> float:
        """Presses keys, and gives the seconds until the program has drawn a text.

        Raises:
            SlipstreamError: If it draws nothing for a minute, or ends.
        """
        began = perf_counter()
        os.write(self._terminal, keys)
        return self.sees(mark) - began

    def sees(self, mark: bytes) -> float:
        """Waits until the program draws a text, and gives the time then.

        Raises:
            SlipstreamError: If it draws nothing for a minute, or ends.
        """
        shown = b""
        while mark not in shown:
            new = self._read(_PATIENCE)
            if not new:
                words = mark.decode("utf-8", "replace")
                raise SlipstreamError(f"the chat ended, or froze for a minute, before it showed {words!r}.")
            shown = shown[-len(mark) :] + new
        return perf_counter()

    def rests(self, seconds: float) -> None:
        """Does nothing for a while, and looks on."""
        end = perf_counter() + seconds
        while (left := end - perf_counter()) > 0:
            self._read(left)

    def leaves(self) -> None:
        """Quits the program, and looks on until it has ended."""
        os.write(self._terminal, _QUIT)
        while self._read(_PATIENCE):
            pass

    def _read(self, seconds: float) -> bytes:
        """What is drawn; nothing where nothing is within these seconds, or the program has left the terminal."""
        with suppress(OSError):
            if select.select([self._terminal], [], [], max(seconds, 0))[0]:
                return os.read(self._terminal, 1 << 16)
        return b""


@contextmanager
def at_the_chat(home: Path, pace: float, chat: str = "") -> Iterator[Person]:
    """Opens the chat of ``tests.bench.interface_chat``, and quits it.

    Args:
        home: Where it keeps everything.
        pace: Seconds a step.
        chat: A kept chat to open; empty for a new one.

    Raises:
        SlipstreamError: If it shows nothing for a minute.
    """
    import pty
    import termios

    ours, its = pty.openpty()
    termios.tcsetwinsize(its, SIZE)
    environment = {**os.environ, HOME_VARIABLE: str(home), "TERM": "xterm-256color"}
    arguments = [str(home), str(pace), *([chat] if chat else [])]
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.interface_chat", *arguments],
        env=environment,
        preexec_fn=lambda: os.login_tty(its),
    )
    os.close(its)
    try:
        person = Person(ours)
        person.sees(b"ready" if not chat else b"\x1b[%d;1H" % SIZE[0])
        yield person
        person.leaves()
    finally:
        if program.poll() is None:
            program.terminate()
        program.wait()
        os.close(ours)
