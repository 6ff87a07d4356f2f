"""What systems do differently with processes: kill a group, leave no core file, measure work."""

from __future__ import annotations

import os
import signal
import sys
import time


def kill_group(leader: int) -> None:
    """Kills a process and all that it started; on Windows, which has no such groups, the process alone.

    Args:
        leader: The process that leads the group; 0 is the group of this process.

    Raises:
        ProcessLookupError: If it has ended.
    """
    if sys.platform == "win32":
        os.kill(leader or os.getpid(), signal.SIGTERM)  # there, any signal ends a process at once
    else:
        os.killpg(leader, signal.SIGKILL)


def leave_no_core_file() -> None:
    """Keeps this process's memory, which may hold chats, from the disk when the process fails."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work_done() -> float:
    """Work of the process: processor seconds of all threads, and one for each page or block from or to a disk.

    A large model whose pages come from a slow disk waits more than it computes.
    """
    seconds = time.process_time()
    if sys.platform != "win32":
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        seconds += usage.ru_majflt + usage.ru_inblock + usage.ru_oublock
    return seconds
