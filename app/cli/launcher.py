"""Processes that start others: the chat's, which restores the terminal, and those that end with their starter.

A command that ends with its starter has a pipe as standard input, which only the starter holds open. It closes when the
starter ends, even by a kill.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Final

from slipstream.app.platform.processes import interrupt_self, kill_group, leave_no_core_file

SMALLEST = (40, 12)  # columns and rows that the chat needs
RESET = b"".join(
    (
        b"\x1b\\",  # ends an unfinished escape string, such as a copy to the clipboard
        b"\x1b[<u",  # plain keys; the terminal keeps this mode for each screen buffer
        b"\x1b[?1049l",  # back to the main screen buffer
        b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l",  # no mouse reports
        b"\x1b[?1004l\x1b[?2004l\x1b[?2048l",  # no focus, paste or size reports
        b"\x1b[?7h\x1b[?25h\x1b[0m",  # wrapping, cursor, colours
    )
)
"""Undoes the chat's changes to a terminal; on an unchanged one it would move the cursor and reset key modes."""
_GRACE: Final = 10.0  # seconds that an interrupted command has to save its work


def terminal_size_problem(columns: int, lines: int) -> str | None:
    """Why a terminal is too small for the chat, in one line; None if it is large enough."""
    if columns >= SMALLEST[0] and lines >= SMALLEST[1]:
        return None
    return f"the terminal has {columns}x{lines} characters; the chat needs {SMALLEST[0]}x{SMALLEST[1]}."


def run(argv: Sequence[str]) -> int:
    """Runs a command as the child that owns the terminal, and restores the terminal if the child did not.

    Restores nothing if the terminal's attributes are unchanged: the child has restored them or has not drawn yet. On
    Windows, or if standard input is not a terminal, only runs the command. Returns its exit code; 128 and the signal's
    number if a signal ended it.
    """
    if sys.platform == "win32" or not sys.stdin.isatty():
        return _exit_code(subprocess.call(argv))
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    child = subprocess.Popen(argv)  # before the signals are set: a child inherits ignored ones

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    old = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in (signal.SIGINT, signal.SIGQUIT):  # keys of the chat
        old[number] = signal.signal(number, signal.SIG_IGN)
    try:
        code = _exit_code(child.wait())
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    with suppress(OSError, termios.error):  # the terminal may be gone
        if termios.tcgetattr(terminal) != before:
            os.write(next(filter(os.isatty, (2, 1, terminal))), RESET)  # Textual draws on standard error
            termios.tcsetattr(terminal, termios.TCSANOW, before)
    return code


def _exit_code(status: int) -> int:
    return status if status >= 0 else 128 - status


def end_with_starter(nice: int) -> None:
    """Makes this process end when its starter does, which holds standard input open, and lowers its priority."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may ignore SIGINT; a child inherits that
    leave_no_core_file()
    if hasattr(os, "nice"):
        os.nice(nice)
    threading.Thread(target=_end_with_starter, name="starter", daemon=True).start()


def _end_with_starter() -> None:
    """Waits for the pipe to close; then interrupts the command as Ctrl-C does, and kills it after ``_GRACE``."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    interrupt_self()
    time.sleep(_GRACE)
    kill_group(0)  # with its children: this process leads its own group
