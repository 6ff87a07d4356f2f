"""Runs a command that ends when the program that started it ends.

Run it as ``python -m slipstream.app.cli.supervised_command NICE COMMAND…``; the command ``RACE`` exists only here.
Its standard input is a pipe that only its starter holds open. It closes when the starter ends, even by a kill; then the
command ends too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from slipstream.app.bench import RACE
from slipstream.app.platform.processes import interrupt_self, kill_group, leave_no_core_file

_GRACE: Final = 10.0  # seconds that an interrupted command has to save its work


def main() -> None:
    """Runs a command, with a lower priority for NICE above 0, until it or its starter ends."""
    nice, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may ignore SIGINT; a child inherits that
    leave_no_core_file()
    if hasattr(os, "nice"):
        os.nice(int(nice))
    threading.Thread(target=_end_with_starter, name="starter", daemon=True).start()
    from slipstream.app.cli import main as cli

    if arguments[0] != RACE:
        cli.main(arguments)
    from slipstream.app.bench.race import run_race

    cli.main(arguments[1:], lambda request: run_race(*request))


def _end_with_starter() -> None:
    """Waits for the pipe to close; then interrupts the command as Ctrl-C does, and kills it after ``_GRACE``."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    interrupt_self()
    time.sleep(_GRACE)
    kill_group(0)  # with its children: this process leads its own group


if __name__ == "__main__":
    main()
