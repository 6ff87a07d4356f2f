"""What differs by operating system: to kill and interrupt processes, their limits and work, and the battery."""

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipstream.models.errors import SlipstreamError

MB: Final = 1 << 20
SUPPLIES: Final = Path("/sys/class/power_supply")
LIMITS: Final = (  # what a shell can limit; the least to start with, and to run a model; how it is called; the cure
    ("RLIMIT_NOFILE", 32, 32, "the open files of a program", "ulimit -n 1024"),
    ("RLIMIT_AS", 64 * MB, 512 * MB, "the memory of a program in bytes", "ulimit -v unlimited"),
)
_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_SET_DUMPABLE: Final = 4


def kill_group(leader: int) -> None:
    """Kills the group of its leader, 0 for that of this process; on Windows, which has no groups, only the process."""
    if sys.platform == "win32":
        os.kill(leader or os.getpid(), signal.SIGTERM)  # on Windows any signal ends a process at once
    else:
        os.killpg(leader, signal.SIGKILL)


def interrupt_self() -> None:
    """Interrupts this process from one of its threads like Ctrl-C; on Windows, after the main thread's current wait."""
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main()  # ``os.kill`` would end it at once
    else:
        os.kill(os.getpid(), signal.SIGINT)


def leave_no_core_file() -> None:
    """Disables core files: a crash must not write this process's memory, which may hold chats, to the disk."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the memory of a parent that forked this process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        raise SlipstreamError("memory cannot be measured on Windows.", "Leave it out with --no-memory.")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def check_limits(runs_model: bool) -> None:
    """Raises the limits of this process as far as it may, because a shell's usual ones may be too low."""
    if sys.platform == "win32":
        return
    import resource

    for name, least, with_model, what, cure in LIMITS:
        number, needed = getattr(resource, name), with_model if runs_model else least
        soft, hard = resource.getrlimit(number)
        if soft == resource.RLIM_INFINITY or soft >= needed:
            continue
        if hard != resource.RLIM_INFINITY and hard < needed:
            title = f"this shell limits {what} to {hard:,}, and slipstream needs {needed:,}."
            raise SlipstreamError(title, f"Start it again after: {cure}")
        resource.setrlimit(number, (needed, hard))


def work_done() -> float:
    """Work of this process so far: CPU seconds of all threads, plus one for each page or block read or written.

    The disk counts because a large model on a slow disk waits for its pages more than it computes.
    """
    seconds = time.process_time()
    if sys.platform != "win32":
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds += usage.ru_majflt + usage.ru_inblock + usage.ru_oublock
    return seconds


def on_battery(supplies: Path = SUPPLIES) -> bool:
    """Returns whether the battery is discharging; False if the system does not report it."""
    with suppress(OSError):
        if sys.platform == "linux":  # psutil would report the battery of a wireless mouse
            return any(_drained(supply) for supply in supplies.iterdir())
        import psutil

        battery = psutil.sensors_battery()
        return battery is not None and battery.power_plugged is False
    return False


def _drained(supply: Path) -> bool:
    kind, scope, status = (_word(supply / name) for name in ("type", "scope", "status"))
    return kind == "Battery" and scope != "Device" and status == "Discharging"


def _word(file: Path) -> str:
    with suppress(OSError):
        return file.read_text("utf-8", "replace").strip()
    return ""


def harden() -> None:
    """Ends this process with its parent, and protects its memory from core files and other programs.

    Linux kills it when the thread that started it ends. A core limit of 0 does not stop core dumps piped to a
    collector; a process that is not dumpable leaves none, and other programs of the user cannot read its memory.
    """
    if sys.platform == "linux":
        import ctypes  # the interface starts without it

        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    from slipstream.app.platform.error_log import print_place  # what starts without the engine does not need it

    leave_no_core_file()
    faulthandler.enable()  # to standard error, which is the log: names of functions, no values
    sys.excepthook = print_place
    threading.excepthook = lambda fault: print_place(fault.exc_type, fault.exc_value, fault.exc_traceback)
