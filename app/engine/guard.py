"""What the engine's process does first: it ends with its parent, leaves no core, logs faults without words."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import threading
import traceback
from types import TracebackType
from typing import Final

_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_SET_DUMPABLE: Final = 4
_HARMLESS: Final = (ImportError, MemoryError, OSError)
"""Errors whose words name files and libraries; those of any other may quote a prompt."""


def guard() -> None:
    """Guards this process: against outliving its parent, and against writing a chat to the disk when it fails.

    Linux kills it when the thread that started it ends. A core that is piped to a collector is not held back by a
    limit of 0, but a process that is not dumpable leaves none; and other programs of its user cannot read its memory.
    """
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()  # to standard error, which is the log: names of functions, no values
    sys.excepthook = _log
    threading.excepthook = lambda fault: _log(fault.exc_type, fault.exc_value, fault.exc_traceback)


def _log(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Logs where an error came from and its kind; the last line is what a person gets to see."""
    where = ""
    for frame in traceback.extract_tb(trace):
        print(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}', file=sys.stderr)
        where = f" in {frame.name}, line {frame.lineno}"
    words = f": {error}" if isinstance(error, _HARMLESS) else ""
    print(f"Error: {kind.__name__}{where}{words}", file=sys.stderr, flush=True)
